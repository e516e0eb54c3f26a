"""A scoring run as its manifest tells it: what is done, what it sums to, who may resume it."""

import dataclasses

import numpy as np
import pytest
from upath import UPath

from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ResumeError
from ncclean.scoring.null import BINS, Histogram
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import Manifest, RunIdentity
from ncclean.storage.run_record import RunRecord

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
    manifest = Manifest.open(layout, identity, **options)
    manifest.close()
    return manifest


def commit(layout, *shards, stats=SCORED, identity=IDENTITY):
    manifest = Manifest.open(layout, identity)
    for number, shard in enumerate(shards):
        manifest.commit(shard, stats, distributions(number, 10))
    manifest.close()


def names(shards):
    return [shard.name for shard in shards]


def test_committed_shards_are_done_and_their_histograms_add_up(layout):
    commit(layout, SHARDS[2], SHARDS[0])
    manifest = reopen(layout)
    assert manifest.identity == IDENTITY
    assert names(manifest.done_shards()) == ["a", "c"]
    assert names(manifest.pending()) == ["b"]
    assert manifest.done["a"] == SCORED
    assert manifest.distributions.matched.counts[:3].tolist() == [10, 10, 0]
    assert manifest.distributions.mismatched.counts[:3].tolist() == [20, 20, 0]
    assert manifest.distributions.matched.units == 20


def test_a_shard_that_was_cut_short_is_pending_and_counts_once(layout):
    commit(layout, SHARDS[0], stats=CUT)
    manifest = Manifest.open(layout, IDENTITY)
    assert names(manifest.pending()) == ["a", "b", "c"]
    manifest.commit(SHARDS[0], SCORED, distributions(7, 5))
    manifest.close()
    for state in (manifest, reopen(layout)):
        assert names(state.pending()) == ["b", "c"]
        assert np.flatnonzero(state.distributions.matched.counts).tolist() == [7]
        assert state.distributions.matched.size == 5


def test_the_shift_is_kept(layout):
    manifest = Manifest.open(layout, IDENTITY)
    manifest.record_noise_shift(0.25)
    manifest.close()
    assert reopen(layout).noise_shift == 0.25
    loaded = Manifest.load(layout.manifest)
    assert loaded.noise_shift == 0.25
    assert loaded.identity == IDENTITY
    loaded.close()


def test_a_line_cut_by_a_crash_is_a_shard_to_do_again(layout):
    commit(layout, SHARDS[0], SHARDS[1])
    layout.manifest.write_bytes(layout.manifest.read_bytes()[:-20])
    manifest = reopen(layout)
    assert names(manifest.pending()) == ["b", "c"]
    assert manifest.distributions.matched.size == 10
    commit(layout, SHARDS[1], SHARDS[2])
    assert reopen(layout).pending() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"model": "demo", "weights_fingerprint": "f1"}},
         "the fingerprint of the weights was f0, is f1"),
        ({"model": {"model": "big", "weights_fingerprint": "f0"}}, "--model was demo, is big"),
        ({"options": {"block_size": 10, "text": True}}, "--block-size was 2048, is 10"),
        ({"shards": SHARDS[:2]}, "shard c is missing now"),
        ({"shards": SHARDS[:1]}, "shard b is missing now, and 1 more"),
        ({"shards": [dataclasses.replace(SHARDS[0], version="v2"), *SHARDS[1:]]},
         "shard a has changed since it was scored"),
        ({"shards": [dataclasses.replace(SHARDS[0], size=11), *SHARDS[1:]]},
         "shard a has changed since it was scored"),
    ],
)  # fmt: skip
def test_another_run_is_refused(layout, change, message):
    commit(layout, SHARDS[0])
    other = dataclasses.replace(IDENTITY, **change)
    with pytest.raises(ResumeError, match=message):
        Manifest.open(layout, other)
    assert names(reopen(layout).pending()) == ["b", "c"]
    overwritten = reopen(layout, other, overwrite=True)
    assert overwritten.pending() == other.shards
    assert overwritten.distributions.matched.size == 0


@pytest.mark.parametrize(
    "change", [{"version": "2"}, {"shards": [*SHARDS[:2], ShardRef("c", "c.tar", 99, "v2")]}]
)
def test_what_changes_no_finished_part_resumes(layout, change):
    commit(layout, SHARDS[0], SHARDS[1])
    manifest = reopen(layout, dataclasses.replace(IDENTITY, **change))
    assert names(manifest.pending()) == ["c"]
    assert manifest.identity.shards == change.get("shards", SHARDS)


def test_a_repaired_shard_resumes_and_is_then_kept_as_it_is(layout):
    commit(layout, *SHARDS[:2])
    commit(layout, SHARDS[2], stats=CUT)
    repaired = [*SHARDS[:2], dataclasses.replace(SHARDS[2], version="v2")]
    identity = dataclasses.replace(IDENTITY, shards=repaired)
    commit(layout, repaired[2], identity=identity)
    assert reopen(layout, identity).pending() == []
    with pytest.raises(ResumeError, match="shard c has changed since it was scored"):
        Manifest.open(layout, IDENTITY)


def test_a_run_that_scored_no_pair_gives_way(layout):
    commit(layout, SHARDS[0], stats=NOTHING)
    other = dataclasses.replace(IDENTITY, shards=SHARDS[1:])
    assert names(reopen(layout, other).pending()) == ["b", "c"]


def test_nothing_is_loaded_where_nothing_was_scored(layout):
    assert Manifest.load(layout.manifest) is None
    reopen(layout)
    RunRecord.clear(layout.manifest, "score")
    assert Manifest.load(layout.manifest) is None


def test_a_closed_manifest_takes_nothing(layout):
    manifest = reopen(layout)
    with pytest.raises(RuntimeError, match="closed"):
        manifest.commit(SHARDS[0], SCORED, distributions(0, 1))


def test_two_runs_on_one_output_are_refused(layout):
    manifest = Manifest.open(layout, IDENTITY)
    with pytest.raises(InputError, match="another run is writing"):
        Manifest.load(layout.manifest)
    manifest.close()


def test_what_was_recorded_of_a_shard_can_be_read_again(layout):
    commit(layout, SHARDS[1], SHARDS[0], stats=CUT)
    commit(layout, SHARDS[0])
    manifest = Manifest.load(layout.manifest, read_only=True)
    entries = {name: (stats, counts) for name, stats, counts in manifest.parts("abc")}
    assert {name: stats for name, (stats, _) in entries.items()} == {"a": SCORED, "b": CUT}
    total = sum(counts.matched.size for _, counts in entries.values())
    assert total == manifest.distributions.matched.size == 20
    for shards in ("b", "a", "ba"):  # each once, whatever was recorded of it before
        assert [name for name, *_ in manifest.parts(shards)] == list(shards)


def test_a_grown_list_is_recorded_as_what_is_new(layout):
    shards = [ShardRef(f"{n:05d}", f"s3://bucket/corpus/{n:05d}.tar", 10, "e") for n in range(2000)]
    reopen(layout, dataclasses.replace(IDENTITY, shards=shards[1:-1]))
    size = layout.manifest.stat().st_size
    reopen(layout, dataclasses.replace(IDENTITY, shards=shards))
    assert layout.manifest.stat().st_size - size < 1000
    loaded = Manifest.load(layout.manifest, read_only=True)
    assert loaded.identity.shards == shards
    assert (loaded.numbers["00000"], loaded.numbers["01999"]) == (1998, 1999)
