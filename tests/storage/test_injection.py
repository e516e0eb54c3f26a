"""A noise injection as its record tells it."""

import dataclasses

import numpy as np
import pytest
from upath import UPath

from ncclean.data.shard_index import index_shard
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import ResumeError
from ncclean.storage.injection import (
    Injection,
    InjectionIdentity,
    ShardRecord,
    keep_table,
    kept_table,
)
from tests import hostile

SHARDS = [
    ShardRef("a", "in/a.tar", 1, "1"),
    ShardRef("x/b", "in/x/b.tar.gz", 2, "2"),
    ShardRef("c", "in/c", 3, "3"),
]
IDENTITY = InjectionIdentity({"ncr": 0.2}, 0, 256, None, SHARDS)
RECORD = ShardRecord(10, 9, {"ncr": 2}, {}, 0, 0, 0, "")


def open_run(out, identity=IDENTITY, overwrite=False):
    return Injection.open(UPath(out), identity, overwrite=overwrite)


def reopen(out, *arguments, **options):
    run = open_run(out, *arguments, **options)
    run.close()
    return run


def write(run, number, content="shard"):
    path = run.shard(SHARDS[number])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_shards_keep_their_names_and_suffixes(tmp_path):
    run = Injection(UPath(tmp_path), IDENTITY)
    assert [str(run.shard(shard).relative_to(tmp_path)) for shard in SHARDS] == [
        "a.tar", "x/b.tar.gz", "c.tar",
    ]  # fmt: skip


def test_finished_shards_and_the_plan_are_kept(tmp_path):
    run = open_run(tmp_path)
    assert (run.pending(), run.planned) == ([0, 1, 2], None)
    run.record_plan({"ncr": 5})
    run.record_plan({"ncr": 6})  # recorded once
    write(run, 1)
    run.commit(SHARDS[1], RECORD)
    run.close()
    again = reopen(tmp_path)
    assert (again.pending(), again.planned) == ([0, 2], {"ncr": 5})
    assert again.done == {"x/b": RECORD}


def test_a_finished_shard_that_went_missing_is_pending(tmp_path):
    run = open_run(tmp_path)
    write(run, 0)
    run.commit(SHARDS[0], RECORD)
    run.shard(SHARDS[0]).unlink()
    assert run.pending() == [0, 1, 2]
    run.close()


def test_a_finished_shard_of_another_size_is_pending(tmp_path):
    run = open_run(tmp_path)
    for number, size in enumerate((5, 4, None)):  # None: written by an earlier version
        write(run, number)
        run.commit(SHARDS[number], dataclasses.replace(RECORD, bytes=size))
    run.close()
    assert reopen(tmp_path).pending() == [1]


def test_a_shard_whose_line_was_cut_is_pending_though_it_is_in_place(tmp_path):
    run = open_run(tmp_path)
    write(run, 0)
    run.commit(SHARDS[0], RECORD)
    run.close()
    (entry,) = (tmp_path / ".ncclean" / "run.entries").iterdir()
    entry.write_bytes(entry.read_bytes()[:-3])
    assert reopen(tmp_path).pending() == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"rates": {"ncr": 0.3}},
        {"rates": {"junk": 0.1}},
        {"seed": 4},
        {"batch_size": 8},
        {"caption_key": "alt"},
        {"shards": SHARDS[:2]},
        {"shards": SHARDS[::-1]},
        {"shards": [dataclasses.replace(SHARDS[0], version="7"), *SHARDS[1:]]},
    ],
)  # fmt: skip
def test_another_run_is_refused(tmp_path, change, refused):
    reopen(tmp_path)
    refused(open_run, tmp_path, dataclasses.replace(IDENTITY, **change))


def test_another_noise_file_is_another_run(tmp_path):
    first, other = (
        dataclasses.replace(IDENTITY, noise_file=np.array(entries)) for entries in ([0, 1], [1, 0])
    )
    reopen(tmp_path, first)
    reopen(tmp_path, first)
    with pytest.raises(ResumeError):
        open_run(tmp_path, other)


def test_indexes_are_kept_and_removed_at_the_end(tmp_path):
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(hostile.sample("a", hostile.JPEG)))
    index = index_shard(resolve_shards([str(tmp_path / "s.tar")])[0])
    run = open_run(tmp_path / "out")
    assert kept_table(run.working_file("index", 1)) is None
    keep_table(run.working_file("index", 1), index)
    run.working_file("images", 2).write_text("images")
    again = kept_table(run.working_file("index", 1))
    assert again.equals(index, check_metadata=True)
    assert kept_table(run.working_file("index", 1), ["row"]).column_names == ["row"]
    for cut in (0, 1, 40, 300, -1):
        run.working_file("index", 0).write_bytes(run.working_file("index", 1).read_bytes()[:cut])
        assert kept_table(run.working_file("index", 0)) is None
    run.remove_working_files()
    left = {path.name for path in (tmp_path / "out" / ".ncclean").iterdir()}
    assert left == {"run.json", "run.lease"}
    run.close()
    with pytest.raises(RuntimeError, match="closed"):
        run.record_plan({})
