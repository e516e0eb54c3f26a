"""Small text files of others: no end, no depth and no aliases that take more than they are."""

import os
import socket
import time

import pytest
from ncclean_pipelines.recipe.bundled import find_recipe

from ncclean.auditing.answers import read_answers
from ncclean.base.text_files import load_yaml, parse_json, read_text
from ncclean.data.shards import resolve_shards
from ncclean.data.word_classes import WordClasses
from ncclean.errors import InputError
from ncclean.models.heads import EmbeddingHead
from ncclean.storage.tables import table_files
from tests import object_store

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


def test_a_text_with_a_byte_order_mark(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfgr\xc3\xbcn")
    assert read_text(tmp_path / "x") == "grün"


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "process"])
def test_what_is_no_file_is_not_waited_for(tmp_path, monkeypatch, kind, refused):
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as place:
            monkeypatch.chdir(tmp_path)  # the path of a socket has at most 108 bytes
            place.bind("x")
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/proc/self/mem")
    begin = time.monotonic()
    refused(read_text, path)
    assert time.monotonic() - begin < 10


def test_a_file_of_holes_is_not_read(tmp_path, refused):
    with (tmp_path / "x").open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    refused(read_text, tmp_path / "x")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000, "{", ""])
def test_json_that_cannot_be_parsed(text, refused):
    refused(parse_json, text, "some file, line 3")


@pytest.mark.parametrize("text", [LAUGHS, "[" * 20_000, "- " * 20_000 + "x", "a: &a [*a]"])
def test_yaml_that_would_not_fit(text, refused):
    begin = time.process_time()
    refused(load_yaml, text, "r.yaml")
    assert time.process_time() - begin < 5


def test_yaml_with_aliases_that_fit():
    assert load_yaml("a: &a [1, 2]\nb: [*a, *a]", "x") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


@pytest.mark.parametrize(
    "text",
    [
        "x: 2020-13-45",
        "!!python/object/apply:os.system [ls]",
        "a: [",
        "a: !!int {x: 1}",
        "a: !!float [1]",
        "a: !!int ''",
    ],
)
def test_yaml_that_is_none(text, refused):
    refused(load_yaml, text, "x")


@pytest.mark.parametrize(
    "read",
    [
        WordClasses.load,
        read_answers,
        EmbeddingHead.load,
        find_recipe,
        lambda path: table_files([path]),
        lambda path: resolve_shards([f"@{path}"]),
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_no_option_waits_for_a_pipe_or_reads_a_device(tmp_path, read, kind):
    path = tmp_path / "x.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=f"it is a {kind}, not a file"):
        read(str(path))


def test_a_wide_text_is_not_a_deep_one():
    assert load_yaml("- []\n" * 300, "x") == [[] for _ in range(300)]


def test_an_object_that_is_too_large_is_not_read_in_part(refused):
    with object_store.s3():
        object_store.filesystem().pipe_file("corpus/x", b"12345")
        assert read_text("s3://corpus/x", 5) == "12345"
        refused(read_text, "s3://corpus/x", 4)
