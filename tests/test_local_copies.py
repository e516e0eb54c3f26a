"""Tables in stores: listed once, fetched whole, and read from this machine."""

from __future__ import annotations

import shutil
import threading
from collections import namedtuple
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.base import local_copies
from ncclean.errors import InputError
from ncclean.storage.joined import query
from ncclean.storage.tables import listed_once, local_tables, table_files, table_metadata
from tests import object_store

COUNT = "SELECT count(*), sum(row) FROM scores"
FEW, MANY = 8, 40


def write(folder, files):
    folder.mkdir()
    for number in range(files):
        facts = {"model": "demo", "of": str(folder)}  # no copy of another test's is the same
        table = pa.table({"uid": [f"u{number}"], "row": [number]}, metadata=facts)
        pq.write_table(table, folder / f"{number:05d}.parquet")
    return folder


@pytest.fixture
def files():
    return FEW


@pytest.fixture
def store(tmp_path, files):
    folder = write(tmp_path / "scores", files)
    with object_store.s3() as made:
        for file in folder.glob("*.parquet"):
            object_store.filesystem().put_file(str(file), f"corpus/scores/{file.name}")
        hidden = "corpus/scores/.ncclean/part-00000.parquet"
        object_store.filesystem().put_file(str(folder / "00000.parquet"), hidden)
        made.requests.clear()
        yield made


@pytest.fixture
def served(tmp_path):
    """The URL of a server of the test's folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def gets(store):
    return [path for method, path in store.requests if method == "GET" and ".parquet" in path]


@pytest.mark.parametrize("files", [MANY])
def test_one_request_a_file_many_at_once(store, files):
    store.together = 32
    path = "s3://corpus/scores"
    assert query(COUNT, [path]).fetchall() == [(MANY, sum(range(MANY)))]
    assert len(gets(store)) == MANY
    assert len(store.requests) <= MANY + 6
    assert store.most_at_once >= 32
    store.requests.clear()
    assert query(COUNT, [path]).fetchall() == [(MANY, sum(range(MANY)))]
    assert not gets(store)


def test_one_request_a_file_of_a_pattern(store, files):
    path = "s3://corpus/scores/*.parquet"
    assert query(COUNT, [path]).fetchall() == [(FEW, sum(range(FEW)))]
    assert len(gets(store)) == FEW
    assert len(store.requests) <= FEW + 6
    store.requests.clear()
    assert query(COUNT, [path]).fetchall() == [(FEW, sum(range(FEW)))]
    assert not gets(store)
    assert table_metadata(path)["model"] == "demo"


@pytest.mark.parametrize("files", [MANY])
def test_many_paths_are_looked_up_side_by_side(store, files):
    paths = table_files(["s3://corpus/scores"])
    store.requests.clear()
    store.together = 32
    with listed_once():
        for _ in range(3):
            assert query(COUNT, paths).fetchall() == [(MANY, sum(range(MANY)))]
            assert table_metadata(paths[0])["model"] == "demo"
    assert len(store.requests) == 2 * MANY
    assert store.most_at_once >= 32


def test_a_file_that_was_replaced_is_fetched_again(store, refused):
    path = "s3://corpus/scores/00000.parquet"
    (before,) = local_tables([path])
    object_store.filesystem().cp_file("corpus/scores/00007.parquet", "corpus/scores/00000.parquet")
    assert query("SELECT uid FROM scores", [path]).fetchall() == [("u7",)]
    assert not Path(before).exists()
    with listed_once():  # a command reads what it listed
        assert query("SELECT uid FROM scores", [path]).fetchall() == [("u7",)]
        object_store.filesystem().rm_file("corpus/scores/00000.parquet")
        assert query("SELECT uid FROM scores", [path]).fetchall() == [("u7",)]
    refused(query, COUNT, [path])


def test_a_store_that_refuses_for_a_while(store):
    seen = set()

    def refuses(method, path):
        is_first = path not in seen
        seen.add(path)
        return is_first

    store.refuses = refuses
    assert query(COUNT, ["s3://corpus/scores"]).fetchall()[0][0] == FEW
    assert store.refused >= FEW


def test_what_cannot_be_fetched_is_one_sentence(store, refused):
    store.forbids = lambda method, path: "00003" in path
    refused(query, COUNT, ["s3://corpus/scores"])


def test_errors_name_the_file_in_the_store(store, refused):
    object_store.filesystem().pipe_file("corpus/scores/00001.parquet", b"no table at all")
    for path in ("s3://corpus/scores", "s3://corpus/scores/00001.parquet"):
        with pytest.raises(InputError, match="cannot be read as Parquet") as raised:
            query(COUNT, [path])
        assert "s3://corpus/scores/00001.parquet" in str(raised.value)
        assert "ncclean-scratch" not in str(raised.value)
    refused(table_metadata, "s3://corpus/scores/00001.parquet")


def test_no_room_is_said_before_anything_is_fetched(store, monkeypatch, refused):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10, 9, 1))
    refused(query, COUNT, ["s3://corpus/scores"])
    assert not gets(store)


def test_other_files_stay_out_of_reach(store, refused):
    refused(
        query, f"SELECT * FROM glob('{local_copies.process_folder()}/*')", ["s3://corpus/scores"]
    )
    refused(
        query,
        "SELECT * FROM read_parquet('s3://corpus/scores/00001.parquet')",
        ["s3://corpus/scores/00000.parquet"],
    )
    (other,) = local_tables(["s3://corpus/scores/00001.parquet"])
    refused(query, f"SELECT * FROM '{other}'", ["s3://corpus/scores/00000.parquet"])


def test_other_stores(tmp_path, served, refused):
    folder = write(tmp_path / "scores", 3)
    memory = fsspec.filesystem("memory")
    for file in folder.iterdir():
        memory.pipe_file(f"/{tmp_path.name}/scores/{file.name}", file.read_bytes())
    for path in (f"memory://{tmp_path.name}/scores", f"memory://{tmp_path.name}/scores/*.parquet"):
        assert query(COUNT, [path]).fetchall() == [(3, 3)]
    two = [f"{served}/scores/0000{number}.parquet?signature=secret" for number in (1, 2)]
    assert query(COUNT, two).fetchall() == [(2, 3)]
    refused(query, COUNT, [f"{served}/none.parquet"])
    assert query(COUNT, [folder.as_uri()]).fetchall() == [(3, 3)]


def test_without_a_version_one_listing_alone_is_trusted(tmp_path):
    url = f"memory://{tmp_path.name}/a.parquet"
    fsspec.filesystem("memory").pipe_file(f"/{tmp_path.name}/a.parquet", b"old")
    listed = local_copies.ListedFile(url, 3, "")
    assert local_copies.local_copies([listed]) == local_copies.local_copies([listed])
    fsspec.filesystem("memory").pipe_file(f"/{tmp_path.name}/a.parquet", b"new")
    (copy,) = local_copies.local_copies([local_copies.ListedFile(url, 3, "")])
    assert Path(copy).read_bytes() == b"new"
