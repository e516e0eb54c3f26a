"""A reader of Lance rows that fails or is ended costs a sentence, and never rows without a word."""

import subprocess
import sys

import pyarrow as pa
import pytest

from ncclean.data.lance_reader import LanceRequest
from ncclean.errors import ShardError

lance = pytest.importorskip("lance")


@pytest.fixture
def url(tmp_path):
    place = str(tmp_path / "rows.lance")
    lance.write_dataset(pa.table({"n": range(1000), "text": ["a"] * 1000}), place)
    return place


def rows(request):
    return [row for batch in request.batches() for row in batch["n"].to_pylist()]


def test_rows_in_order(url):
    assert rows(LanceRequest(url, ["n"], 10, 990, 64)) == list(range(10, 990))


def test_no_rows(url):
    assert rows(LanceRequest(url, ["n"], 10, 10, 64)) == []


def test_a_reader_that_is_left_early_ends(url, monkeypatch):
    readers = []

    class Reader(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            readers.append(self)

    monkeypatch.setattr(subprocess, "Popen", Reader)
    batches = LanceRequest(url, ["n"], 0, 1000, 10).batches()
    next(batches)
    batches.close()
    assert [reader.returncode is None for reader in readers] == [False]


def test_a_module_in_the_working_folder_is_not_imported(url, tmp_path, monkeypatch):
    for name in ("lance", "pyarrow", "json"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    assert rows(LanceRequest(url, ["n"], 0, 3, 64)) == [0, 1, 2]
    assert not (tmp_path / "ran").exists()


def test_what_the_interpreter_says_before_the_reader_is_no_failure(url, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho warning >&2\nexec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert rows(LanceRequest(url, ["n"], 0, 3, 64)) == [0, 1, 2]


def test_a_missing_column_is_a_sentence(url):
    with pytest.raises(ShardError, match="nothing"):
        rows(LanceRequest(url, ["nothing"], 0, 10, 64))


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_reader_that_is_ended_after_some_rows(url, tmp_path, monkeypatch, is_whole):
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, pa.schema([("n", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"n": [1, 2, 3]}))
    written = stream.getvalue().to_pybytes()
    (tmp_path / "stream").write_bytes(written if is_whole else written[:-100])
    reader = tmp_path / "reader"
    reader.write_text(f"#!/bin/sh\ncat > /dev/null\ncat '{tmp_path}/stream'\nkill -ABRT $$\n")
    reader.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(reader))
    with pytest.raises(ShardError):
        rows(LanceRequest(url, ["n"], 0, 10, 64))
