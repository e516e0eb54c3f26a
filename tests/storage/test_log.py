"""A log keeps what was appended, whatever a crash leaves of its last line."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upath import UPath

from ncclean.errors import InputError
from ncclean.storage import log as logs
from ncclean.storage.log import exists, open_log, read_log

RECORDS = [{"kind": "run", "n": 0}, {"kind": "part", "name": "ü\n"}, {"kind": "part", "n": 2}]


@pytest.fixture(params=["file", "store"])
def path(request, tmp_path):
    """Where a log lies: on the disk, or in fsspec's store in memory."""
    if request.param == "file":
        yield UPath(tmp_path / "work" / "manifest.jsonl")
        return
    place = UPath(f"memory://{tmp_path.name}/run/manifest.jsonl")
    yield place
    place.fs.store.clear()


def write(path, records):
    log, before = open_log(path)
    read = list(before)
    for record in records:
        log.append(record)
    log.close()
    return read


def test_records_come_back_in_order_over_several_sessions(path):
    assert not exists(path)
    assert write(path, RECORDS[:1]) == []
    assert write(path, RECORDS[1:]) == RECORDS[:1]
    assert exists(path)
    assert write(path, []) == RECORDS
    assert list(read_log(path)) == RECORDS


def test_a_cleared_log_is_empty_and_goes_on(path):
    write(path, RECORDS)
    log, before = open_log(path)
    list(before)
    log.clear()
    log.append({"kind": "new"})
    log.close()
    assert write(path, []) == [{"kind": "new"}]


def test_a_removed_log_leaves_nothing(path):
    write(path, RECORDS)
    log, before = open_log(path)
    list(before)
    log.remove()
    assert not exists(path)
    assert list(read_log(path)) == []


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 200))
def test_a_line_cut_anywhere_costs_itself_only(tmp_path_factory, cut):
    path = UPath(tmp_path_factory.mktemp("torn") / "m.jsonl")
    write(path, RECORDS)
    whole = path.read_bytes()
    kept = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(kept)
    lines = [json.dumps(record).encode() for record in RECORDS]
    ends = [len(b"\n".join(lines[: n + 1])) for n in range(len(lines))]
    survivors = [record for record, end in zip(RECORDS, ends, strict=True) if end <= len(kept)]
    assert write(path, [{"kind": "after"}]) == survivors
    assert write(path, []) == [*survivors, {"kind": "after"}]


def test_bytes_that_are_no_text_are_passed_over(tmp_path):
    path = UPath(tmp_path / "m.jsonl")
    write(path, RECORDS[:1])
    with path.open("ab") as file:  # what a file system may leave after a power cut
        file.write(bytes(100) + b"\xff\xfe" + b"\n[1, 2]\n")
    assert write(path, RECORDS[1:]) == RECORDS[:1]
    assert write(path, []) == RECORDS


def test_two_writers_are_kept_apart_and_a_reader_is_not(tmp_path):
    path = UPath(tmp_path / "m.jsonl")
    log, _ = open_log(path)
    log.append(RECORDS[0])
    with pytest.raises(InputError, match="another run is writing"):
        open_log(path)
    assert list(read_log(path)) == RECORDS[:1]
    log.close()
    assert write(path, []) == RECORDS[:1]


def test_a_lock_on_a_removed_file_keeps_nobody_out(tmp_path):
    path = UPath(tmp_path / "m.jsonl")
    log, _ = open_log(path)
    path.unlink()
    other, _ = open_log(path)
    other.append(RECORDS[0])
    log.close()
    with pytest.raises(InputError, match="another run is writing"):
        open_log(path)
    other.close()
    assert write(path, []) == RECORDS[:1]


def test_a_write_cut_short_by_a_full_disk_does_not_swallow_the_next(tmp_path, monkeypatch):
    path = UPath(tmp_path / "m.jsonl")
    log, _ = open_log(path)
    log.append(RECORDS[0])
    write_all = os.write

    def half(descriptor, data):
        if len(data) < 5:
            raise OSError(28, "No space left on device")
        return write_all(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(InputError, match="no space left"):
        log.append(RECORDS[1])
    monkeypatch.undo()
    log.append(RECORDS[2])
    log.close()
    assert write(path, []) == [RECORDS[0], RECORDS[2]]


def test_a_store_gathers_records_and_flush_writes_them(tmp_path, monkeypatch):
    path = UPath(f"memory://{tmp_path.name}/m.jsonl")
    log, _ = open_log(path)
    for record in RECORDS:
        log.append(record)
    assert list(read_log(path)) == RECORDS[:1]  # the first is written at once
    log.flush()
    assert list(read_log(path)) == RECORDS
    monkeypatch.setattr(logs, "_GATHER_SECONDS", 0.0)
    log.append({"kind": "due"})
    assert list(read_log(path)) == [*RECORDS, {"kind": "due"}]
    assert [p.name for p in sorted(path.parent.glob("*"))] == [
        f"m-{number:06d}.jsonl" for number in range(3)
    ]
    path.fs.store.clear()


def test_objects_of_another_name_are_no_part_of_a_log(tmp_path):
    path = UPath(f"memory://{tmp_path.name}/m.jsonl")
    path.with_name("m-mine.jsonl").write_bytes(b'{"kind": "mine"}\n')
    assert not exists(path)
    write(path, RECORDS)
    log, before = open_log(path)
    assert list(before) == RECORDS
    log.remove()
    assert path.with_name("m-mine.jsonl").exists()
    path.fs.store.clear()


def test_objects_are_cleared_first_to_last(tmp_path, monkeypatch):
    """Whatever of the clearing a kill leaves must not begin like a log."""
    path = UPath(f"memory://{tmp_path.name}/m.jsonl")
    log, _ = open_log(path)
    for record in RECORDS:
        log.append(record)
        log.flush()
    removed = []
    monkeypatch.setattr(type(path), "unlink", lambda piece: removed.append(piece.name))
    log.clear()
    assert removed == [f"m-{number:06d}.jsonl" for number in range(3)]
    path.fs.store.clear()


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_LONGEST_LINE", 1 << 20)
    path = UPath(tmp_path / "manifest.jsonl")
    write(path, RECORDS[:1])
    os.truncate(path, 1 << 40)
    for read in (read_log, lambda place: open_log(place)[1]):
        with pytest.raises(InputError, match="a line is longer than 1 MB"):
            list(read(path))
