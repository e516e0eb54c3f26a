"""The files behind an input, by which a stage tells whether it would do the same again."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.base import stores
from ncclean.base.options import Reads
from ncclean.errors import InputError
from ncclean.storage.decisions import entries_of
from ncclean.storage.entries import Entries
from ncclean.storage.file_digests import content_digest, footer_digest
from ncclean.storage.inputs import stamps
from ncclean.storage.tables import check_apart
from tests import object_store


@pytest.mark.parametrize(
    ("reads", "value", "name"),
    [
        (Reads.TABLE, "{}/scores.parquet", "scores.parquet"),
        (Reads.JOINED, "n={}/scores.parquet", "scores.parquet"),
        (Reads.MODEL, "local-dir:{}/model", "model/weights.safetensors"),
        (Reads.PATH, "{}/audit.yaml", "audit.yaml"),
        (Reads.NAMED, "aesthetic={}/head.safetensors", "head.safetensors"),
        (Reads.NAME_OR_FILE, "{}/classes.txt", "classes.txt"),
    ],
)
def test_a_file_that_is_written_again_has_another_stamp(tmp_path, reads, value, name):
    """Also one of the same size, and within the same second."""
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"PAR1" * 3)
    second = 1_700_000_000 * 10**9
    found = []
    for later in (0, 1_000_000):
        os.utime(place, ns=(second, second + later))
        found.append(list(stamps(reads, value.format(tmp_path))))
    assert found == [[(str(place), 12, str(second + later))] for later in (0, 1_000_000)]


def test_a_file_in_a_store_that_is_written_again_has_another_stamp():
    """Decisions that were added to one changed no selection."""
    versions = []
    with object_store.s3():
        for data in (b"drop", b"keep"):
            object_store.filesystem().pipe_file("corpus/decisions.jsonl", data)
            ((path, size, version),) = stamps(Reads.PATH, "s3://corpus/decisions.jsonl")
            assert (path, size) == ("s3://corpus/decisions.jsonl", 4)
            versions.append(version)
    assert versions[0] != versions[1]


def test_decisions_of_a_review_that_has_not_ended_are_stamped(tmp_path):
    """They are read with those in its file, which does not change before the end."""
    path = tmp_path / "decisions.parquet"
    path.write_bytes(b"PAR1")
    ((_, size, _),) = stamps(Reads.PATH, str(path))
    Entries(entries_of(stores.location(str(path)))).add({"batch": 0})
    assert [size for _, size, _ in stamps(Reads.PATH, str(path))] == [size, 12]


def test_a_function_is_the_file_of_its_module_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "lengths.py").write_text("...")
    ((_, size, version),) = stamps(Reads.FUNCTION, "own.lengths:words")
    assert size == 3
    assert version
    assert list(stamps(Reads.FUNCTION, "installed:words")) == [("installed.py", 0, "")]


def test_files_behind_links_of_a_folder_are_stamped_once(tmp_path):
    """A folder of evaluation sets may hold links to them, also one to itself."""
    sets, data = tmp_path / "sets", tmp_path / "disk" / "flickr30k"
    sets.mkdir()
    data.mkdir(parents=True)
    (data / "captions.txt").write_text("a dog")
    (sets / "flickr30k").symlink_to(data)
    (sets / "again").symlink_to(sets)
    (sets / ".#lock").symlink_to("nobody@nowhere")
    before = list(stamps(Reads.PATH, str(sets)))
    (data / "captions.txt").write_text("another dog")
    after = list(stamps(Reads.PATH, str(sets)))
    assert [size for _, size, _ in before] == [5]
    assert [size for _, size, _ in after] == [11]


@pytest.mark.parametrize("digest", [content_digest, footer_digest])
@pytest.mark.parametrize("changed", ["a", "b"])
def test_a_digest_is_of_all_files_of_a_table(tmp_path, digest, changed):
    paths = [str(tmp_path / f"{name}.parquet") for name in "ab"]
    for path in paths:
        pq.write_table(pa.table({"x": [1]}), path)
    before = digest(paths)
    pq.write_table(pa.table({"x": [2]}), tmp_path / f"{changed}.parquet")
    assert digest(paths) != before


def test_an_output_is_told_from_its_inputs_by_more_than_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_apart("other.parquet", ["scores.parquet"])
    for name in ("scores.parquet", "./scores.parquet", str(tmp_path / "scores.parquet")):
        with pytest.raises(InputError, match="would overwrite"):
            check_apart(name, ["scores.parquet"])
