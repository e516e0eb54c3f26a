"""Sources at `hf://`, against a local server that speaks the hub's interface."""

import json
import os
import shutil
import subprocess
import sys

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet
from werkzeug.wrappers import Response

from ncclean.base import stores
from ncclean.data.sources import resolve_sources
from ncclean.storage.joined import query
from tests.command_line import START, run
from tests.factories import rendered
from tests.hub import Hub, serve_hub
from tests.pipelines.score_tables import assert_same_rows, read

MODEL = ["--model", "demo", "--precision", "fp32", "--shift", "0.2"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Six shards, more than a page of a listing, and the same pairs in a private repository."""
    root = tmp_path_factory.mktemp("hub")
    rendered(
        root / "org/pairs/data", pairs=120, shard_size=20, noise={"ncr": 0.2}, broken=0.02, seed=4
    )
    shutil.copytree(root / "org/pairs", root / "org/private")
    return root


@pytest.fixture
def hub(root, monkeypatch):
    with serve_hub(root, private=("org/private",)) as hub:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": hub.url, "token": False})
        yield hub


@pytest.mark.slow
def test_a_table_from_the_hub_is_the_local_one(root, tmp_path):
    local = run("score", root / "org/pairs/data", "--out", tmp_path / "a.parquet", *MODEL)
    assert local.returncode == 0
    # In a process of its own: the library reads its environment when it is imported.
    with serve_hub(root, private=("org/private",), busy=2) as hub:
        settings = {"HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1", "HF_TOKEN": "secret"}
        out, source = tmp_path / "b.parquet", "hf://datasets/org/private/data"
        done = subprocess.run(
            [sys.executable, "-c", START, "score", source, "--out", out, *MODEL],
            env=os.environ | settings, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_same_rows(read(out), read(tmp_path / "a.parquet"))
    assert hub.busy == 0


def test_shards_have_sizes_and_versions_that_change_with_their_bytes(root, hub):
    before = resolve_sources(["hf://datasets/org/pairs@main/data"])
    assert [shard.name for shard in before] == [f"{number:05d}" for number in range(6)]
    assert [shard.size for shard in before] == [
        (root / f"org/pairs/data/{shard.name}.tar").stat().st_size for shard in before
    ]
    file = root / "org/pairs/data/00003.tar"
    data = file.read_bytes()
    try:
        file.write_bytes(data + bytes(512))
        after = resolve_sources(["hf://datasets/org/pairs@main/data"])
    finally:
        file.write_bytes(data)
    changed = [one.name for one, other in zip(before, after, strict=True) if one != other]
    assert changed == ["00003"]


def test_parquet_of_a_dataset_is_read_in_ranges(root, hub):
    rows = {"image": [{"bytes": b"x", "path": "a.jpg"}] * 3, "caption": ["a", "b", "c"]}
    folder = root / "org/table/data"
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(rows), folder / "train-00000.parquet")
    (shard,) = resolve_sources(["hf://datasets/org/table/data/train-*.parquet"])
    assert (shard.layout, shard.rows) == ("parquet", (0, 3))
    assert stores.read_range(shard.url, 0, 4) == b"PAR1"


@pytest.mark.parametrize(
    "place", ["org/nosuch/data", "org/private/data", "org/pairs@v2/data", "org/pairs/nosuch.tar"]
)
def test_what_is_not_there_is_one_sentence_at_once(hub, place, refused):
    refused(resolve_sources, [f"hf://datasets/{place}"])
    assert len(hub.requests) < 6


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("_facts", "<html>please log in</html>"), ("_tree", "<html>please log in</html>"),
        ("_facts", "[5]"), ("_tree", "[5]"), ("_tree", '{"error": "x"}'),
        ("_tree", '[{"type": "file"}]'),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_one_sentence_at_once(root, monkeypatch, answer, asked, refused):
    """A proxy may answer in place of the hub."""
    monkeypatch.setattr(Hub, asked, lambda *_: Response(answer, mimetype="application/json"))
    with serve_hub(root) as hub:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": hub.url, "token": False})
        for place in ("data", "data/*.tar", "data/00000.tar"):
            refused(resolve_sources, [f"hf://datasets/org/pairs/{place}"])
        assert len(hub.requests) < 9


def test_a_size_below_nothing_is_none(root, monkeypatch):
    entry = {"type": "file", "oid": "0" * 40, "size": -5, "path": "data/a.tar"}
    monkeypatch.setattr(Hub, "_tree", lambda *_: Response(json.dumps([entry])))
    with serve_hub(root) as hub:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": hub.url, "token": False})
        (shard,) = resolve_sources(["hf://datasets/org/pairs/data"])
    assert shard.size == 0


def test_score_tables_of_the_hub(tmp_path, refused):
    folder = tmp_path / "org/tables/scores"
    folder.mkdir(parents=True)
    for number in range(12):  # more than a page of a listing
        parquet.write_table(pa.table({"uid": [f"u{number}"]}), folder / f"{number:05d}.parquet")
    count, url = "SELECT count(*), max(uid) FROM scores", "hf://datasets/org/tables/scores"
    with serve_hub(tmp_path) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "hf", {"endpoint": hub.url, "token": False})
        for path in (url, f"{url}/*.parquet"):
            assert query(count, [path]).fetchall() == [(12, "u9")]
        assert query(count, [f"{url}/00003.parquet"]).fetchall() == [(1, "u3")]
        assert sum("/resolve/" in line for line in hub.requests) <= 3 * 12
        refused(query, count, [f"{url}/none.parquet"])
