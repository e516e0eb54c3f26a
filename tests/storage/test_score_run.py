"""The state of a scoring run: what is done, what it sums to, who may resume it."""

import dataclasses

import numpy as np
import pytest
from upath import UPath

from ncclean.base import schema
from ncclean.data.shards import ShardRef
from ncclean.scoring.null import BINS, Histogram
from ncclean.scoring.stats import ColumnFailures, Distributions, ShardStats
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.run_record import RUN, RunRecord
from ncclean.storage.score_run import RunIdentity, ScoreRun
from ncclean.storage.shard_records import ShardRecord
from tests.storage import scored_runs

SHARDS = [ShardRef(name, f"{name}.tar", 10, "v1") for name in "abc"]
IDENTITY = RunIdentity(
    model={"model": "demo", "weights_fingerprint": "f0"},
    options={"block_size": 2048, "text": True},
    shards=SHARDS,
    version="1",
)
SCORED = ShardStats(rows=5, statuses={"ok": 4, "image_missing": 1}, seconds=1.0)
CUT = dataclasses.replace(SCORED, rows=2, error="is cut short")
NOTHING = ShardStats(rows=0, statuses={}, seconds=0.0, error="cannot be read")


def distributions(bin: int, count: int) -> Distributions:
    counts = np.zeros(BINS, dtype=np.int64)
    counts[bin] = count
    return Distributions(Histogram(counts, count), Histogram(2 * counts, 0), Histogram())


@pytest.fixture(params=["folder", "file"])
def layout(request, tmp_path):
    return ScoreLayout(UPath(tmp_path / ("s" if request.param == "folder" else "s.parquet")))


def reopen(layout, identity=IDENTITY, **options):
    run = ScoreRun.open(layout, identity, **options)
    run.close()
    return run


def commit(layout, *shards, stats=SCORED, identity=IDENTITY):
    run = ScoreRun.open(layout, identity)
    for number, shard in enumerate(shards):
        take(run, shard, stats, distributions(number, 10))
    run.close()


def take(run, shard, stats, distributions):
    rows = schema.SCORES.empty_table()
    scored_runs.commit(run, shard, rows, stats, distributions)


def names(shards):
    return [shard.name for shard in shards]


def test_committed_shards_are_done_and_their_histograms_add_up(layout):
    commit(layout, SHARDS[2], SHARDS[0])
    run = reopen(layout)
    assert run.identity == IDENTITY
    assert names(run.done_shards()) == ["a", "c"]
    assert names(run.pending()) == ["b"]
    assert run.done["a"] == SCORED
    assert run.distributions.matched.counts[:3].tolist() == [10, 10, 0]
    assert run.distributions.mismatched.counts[:3].tolist() == [20, 20, 0]
    assert run.distributions.matched.units == 20


def test_a_shard_that_was_cut_short_is_pending_and_counts_once(layout):
    commit(layout, SHARDS[0], stats=CUT)
    run = ScoreRun.open(layout, IDENTITY)
    assert names(run.pending()) == ["a", "b", "c"]
    take(run, SHARDS[0], SCORED, distributions(7, 5))
    run.close()
    for state in (run, reopen(layout)):
        assert names(state.pending()) == ["b", "c"]
        assert np.flatnonzero(state.distributions.matched.counts).tolist() == [7]
        assert state.distributions.matched.size == 5


def test_the_shift_is_kept(layout):
    run = ScoreRun.open(layout, IDENTITY)
    run.record_noise_shift(0.25)
    run.close()
    assert reopen(layout).noise_shift == 0.25
    loaded = ScoreRun.load(layout)
    assert loaded.noise_shift == 0.25
    absolute = [shard.absolute() for shard in SHARDS]
    assert loaded.identity == dataclasses.replace(IDENTITY, shards=absolute)


def test_a_part_cut_by_a_crash_is_a_shard_to_do_again(layout):
    commit(layout, SHARDS[0], SHARDS[1])
    part = layout.part(SHARDS[1])
    part.write_bytes(part.read_bytes()[:-20])
    run = reopen(layout)
    assert names(run.pending()) == ["b", "c"]
    assert run.distributions.matched.size == 10
    commit(layout, SHARDS[1], SHARDS[2])
    assert reopen(layout).pending() == []


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"model": "demo", "weights_fingerprint": "f1"}},
        {"model": {"model": "big", "weights_fingerprint": "f0"}},
        {"options": {"block_size": 10, "text": True}},
        {"shards": SHARDS[:2]},
        {"shards": SHARDS[:1]},
        {"shards": [dataclasses.replace(SHARDS[0], version="v2"), *SHARDS[1:]]},
        {"shards": [dataclasses.replace(SHARDS[0], size=11), *SHARDS[1:]]},
    ],
)  # fmt: skip
def test_another_run_is_refused(layout, change, refused):
    commit(layout, SHARDS[0])
    other = dataclasses.replace(IDENTITY, **change)
    refused(ScoreRun.open, layout, other)
    assert names(reopen(layout).pending()) == ["b", "c"]
    overwritten = reopen(layout, other, overwrite=True)
    assert overwritten.pending() == other.shards
    assert overwritten.distributions.matched.size == 0


@pytest.mark.parametrize(
    "change", [{"version": "2"}, {"shards": [*SHARDS[:2], ShardRef("c", "c.tar", 99, "v2")]}]
)
def test_what_changes_no_finished_part_resumes(layout, change):
    commit(layout, SHARDS[0], SHARDS[1])
    run = reopen(layout, dataclasses.replace(IDENTITY, **change))
    assert names(run.pending()) == ["c"]
    assert run.identity.shards == change.get("shards", SHARDS)


def test_a_repaired_shard_resumes_and_is_then_kept_as_it_is(layout, refused):
    commit(layout, *SHARDS[:2])
    commit(layout, SHARDS[2], stats=CUT)
    repaired = [*SHARDS[:2], dataclasses.replace(SHARDS[2], version="v2")]
    identity = dataclasses.replace(IDENTITY, shards=repaired)
    commit(layout, repaired[2], identity=identity)
    assert reopen(layout, identity).pending() == []
    refused(ScoreRun.open, layout, IDENTITY)


def test_a_run_that_scored_no_pair_gives_way(layout):
    commit(layout, SHARDS[0], stats=NOTHING)
    other = dataclasses.replace(IDENTITY, shards=SHARDS[1:])
    assert names(reopen(layout, other).pending()) == ["b", "c"]


def test_nothing_is_loaded_where_nothing_was_scored(layout):
    assert ScoreRun.load(layout) is None
    reopen(layout)
    RunRecord.clear(layout.work / RUN, "score", base=layout.out)
    assert ScoreRun.load(layout) is None


def test_a_closed_run_takes_nothing(layout):
    run = reopen(layout)
    with pytest.raises(RuntimeError, match="closed"):
        run.commit(SHARDS[0], SCORED, distributions(0, 1))


def test_what_was_recorded_of_a_shard_can_be_read_again(layout):
    commit(layout, SHARDS[1], SHARDS[0], stats=CUT)
    commit(layout, SHARDS[0])
    run = ScoreRun.load(layout)
    records = {name: ShardRecord.from_json(text) for name, text in run.records()}
    assert {name: record.stats for name, record in records.items()} == {"a": SCORED, "b": CUT}
    total = sum(record.distributions.matched.size for record in records.values())
    assert total == run.distributions.matched.size == 20


def test_a_part_with_a_footer_longer_than_usual_is_read(layout):
    failures = ColumnFailures()
    failures.add("mine", "x" * 100_000)
    commit(layout, SHARDS[0], stats=dataclasses.replace(SCORED, column_failures=failures))
    assert reopen(layout).done["a"].column_failures.reasons["mine"] == "x" * 100_000
