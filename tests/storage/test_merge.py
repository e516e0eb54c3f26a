"""Runs over parts of a corpus to one: the table is that of one run over all of it."""

import os
import random
import shutil

import pytest
from ncclean_pipelines.progress import Calls
from upath import UPath

from ncclean.base import stores
from ncclean.scoring.calibration import Calibration
from ncclean.storage import finalize as stage
from ncclean.storage import lease, parts, table_file
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.merge import merge
from ncclean.storage.run_record import RUN
from ncclean.storage.score_run import ScoreRun
from tests.storage.scored_runs import (
    EMPTY,
    Killed,
    assert_same_table,
    fitted_once,
    identity,
    killed_at,
    read,
    refs,
    score,
)

CORPUS = sorted(["a", "b", "c", "d", "e", "f", "g", "h", "i", EMPTY])
SETTINGS = {"shift": 0.2}


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 1e6)  # no thread changes files in between
    monkeypatch.setattr(lease, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(stage, "FILE_BYTES", 30 * 256)
    monkeypatch.setattr(Calibration, "fit", fitted_once)
    for module in (table_file, parts):
        monkeypatch.setattr(module, "ROW_GROUP_ROWS", 20)


def once(tmp_path, name, names, **options):
    place = UPath(tmp_path / "once" / name)
    score(place, names, **options)
    return read(place)


def scored(tmp_path, pieces, suffix=".parquet", **options):
    """The outputs of runs over pieces of the corpus."""
    outs = [str(tmp_path / f"piece-{number}{suffix}") for number in range(len(pieces))]
    for out, names in zip(outs, pieces, strict=True):
        score(UPath(out), names, **options)
    return outs


@pytest.mark.parametrize(
    ("pieces", "suffix", "name"),
    [
        ([CORPUS[:3], CORPUS[3:4], CORPUS[4:9], CORPUS[9:]], ".parquet", "s.parquet"),
        ([CORPUS[:3], CORPUS[3:4], CORPUS[4:9], CORPUS[9:]], "", "s"),
        ([CORPUS[n::4] for n in range(4)], ".parquet", "s"),
        ([CORPUS[n::4] for n in range(4)], "", "s.parquet"),
        ([CORPUS[n::4] for n in (2, 0, 3, 1)], ".parquet", "s.parquet"),
        ([CORPUS[n::4] for n in (2, 0, 3, 1)], "", "s"),
    ],
    ids=["contiguous", "contiguous, folders", "strided", "strided, folders", "in any order",
         "in any order, folders"],
)  # fmt: skip
def test_merged_pieces_are_one_run(tmp_path, suffix, name, pieces):
    runs = scored(tmp_path, pieces, suffix)
    reports = []
    watched = Calls(lambda report: reports.append((report.done, report.total)))
    summary = merge(runs, str(tmp_path / name), **SETTINGS, progress=watched)
    files = len(list(UPath(tmp_path).glob(f"{name}/*.parquet")))
    assert files < 2 or reports[-1] == (files, files)
    expected = once(tmp_path, name, CORPUS)
    assert_same_table(read(UPath(tmp_path / name)), expected)
    assert (summary.rows, summary.shards, summary.shards_failed) == (len(expected), 10, 0)
    assert summary.noise_rate.value == pytest.approx(float(expected.schema.metadata[b"noise_rate"]))


def test_runs_that_are_not_sorted_follow_one_another(tmp_path):
    runs = scored(tmp_path, [["d", "b"], ["a", "c"]])
    merge(runs, str(tmp_path / "s.parquet"), **SETTINGS)
    expected = once(tmp_path, "s.parquet", ["d", "b", "a", "c"])
    assert_same_table(read(UPath(tmp_path / "s.parquet")), expected)


@pytest.mark.parametrize("name", ["s.parquet", "s"])
def test_a_merged_run_grows_and_takes_a_third_run(tmp_path, name):
    runs = scored(tmp_path, [CORPUS[:4], CORPUS[6:]])
    out = UPath(tmp_path / name)
    merge(runs, str(out), **SETTINGS)
    score(out, CORPUS)
    assert_same_table(read(out), once(tmp_path, name, CORPUS))
    more = tmp_path / "more.parquet"
    score(UPath(more), ["x", "y"])
    score(UPath(tmp_path / "rest.parquet"), CORPUS[4:6])
    merge([*runs, str(tmp_path / "rest.parquet"), str(more)], str(out), **SETTINGS)
    assert_same_table(read(out), once(tmp_path, name, [*CORPUS, "x", "y"]))


def test_broken_shards_stay_broken_and_are_tried_again(tmp_path):
    runs = scored(tmp_path, [CORPUS[::2], CORPUS[1::2]], broken="dg")
    out = UPath(tmp_path / "s.parquet")
    summary = merge(runs, str(out), **SETTINGS)
    assert summary.failed_shards == {"d": "cut", "g": "cut"}
    assert_same_table(read(out), once(tmp_path, "s.parquet", CORPUS, broken="dg"))
    score(UPath(runs[0]), CORPUS[::2])  # with a shard that is whole by now
    merge(runs, str(out), **SETTINGS)
    score(out, CORPUS)
    assert_same_table(read(out), once(tmp_path, "whole.parquet", CORPUS))


def test_a_grown_run_is_merged_as_it_is_now(tmp_path):
    for names in (CORPUS[:6], CORPUS[1:7]):
        score(UPath(tmp_path / "a"), names, drop_missing=True)
    score(UPath(tmp_path / "b"), CORPUS[7:])
    merge([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "s"), **SETTINGS)
    assert_same_table(read(UPath(tmp_path / "s")), once(tmp_path, "s", CORPUS[1:]))


def test_in_and_out_of_a_store(tmp_path):
    place = f"memory://{tmp_path.name}"
    runs = [f"{place}/a.parquet", f"{place}/b"]
    try:
        for run, names in zip(runs, (CORPUS[::2], CORPUS[1::2]), strict=True):
            score(stores.location(run), names)
        merge(runs, f"{place}/s.parquet", **SETTINGS)
        found = read(stores.location(f"{place}/s.parquet"))
    finally:
        stores.filesystem(place)[0].store.clear()
    assert_same_table(found, once(tmp_path, "s.parquet", CORPUS))


def test_runs_that_do_not_go_together_are_refused_with_the_reason(tmp_path, refused):
    runs = scored(tmp_path, [["a", "b"], ["c"], ["b"], ["e"]])
    out = str(tmp_path / "s.parquet")
    refused(merge, runs, out, **SETTINGS)
    shutil.rmtree(f"{runs[1]}.work")
    refused(merge, runs, out, **SETTINGS)
    layout = ScoreLayout(UPath(runs[3]))
    record = layout.work / RUN
    whole = record.read_text()
    for change in (
        ('"seed": 0', '"seed": 1'),
        ('"demo"', '"other"'),
        ('"version": "9"', '"version": "8"'),
    ):
        record.write_text(whole.replace(*change, 1))
        refused(merge, [runs[0], runs[3]], out, **SETTINGS)
    record.write_text(whole)
    ScoreRun.open(layout, identity(["e", "f"], embeddings=None)).close()
    refused(merge, [runs[0], runs[3]], out, **SETTINGS)
    refused(merge, [runs[0]], runs[0], **SETTINGS)
    refused(merge, [runs[0]], out)
    assert not os.path.exists(f"{out}.work")


def test_where_embeddings_were_written_may_differ(tmp_path):
    runs = [str(tmp_path / name) for name in "ab"]
    for run, names in zip(runs, (CORPUS[::2], CORPUS[1::2]), strict=True):
        score(UPath(run), names, embeddings=f"{run}-embeddings")
    merge(runs, str(tmp_path / "s"), **SETTINGS)
    assert_same_table(read(UPath(tmp_path / "s")), once(tmp_path, "s", CORPUS))


def test_another_merge_is_refused_and_overwrite_removes_what_is_listed(tmp_path, refused):
    runs = scored(tmp_path, [CORPUS[:5], CORPUS[5:]])
    out = UPath(tmp_path / "s")
    merge(runs, str(out), **SETTINGS)
    (tmp_path / "s" / "notes.txt").write_text("mine")
    refused(merge, runs[:1], str(out), **SETTINGS)
    merge(runs[:1], str(out), **SETTINGS, overwrite=True)
    assert_same_table(read(out), once(tmp_path, "s", CORPUS[:5]))
    assert (tmp_path / "s" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["s.parquet", "s"])
def test_killed_at_some_changes_of_files(tmp_path, monkeypatch, name):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    runs = scored(tmp_path, [CORPUS[:5:2], CORPUS[1:5:2]])
    expected = once(tmp_path, name, CORPUS[:5])
    place = tmp_path / "merged"
    out = UPath(place / name)
    with killed_at(10**6) as changes:
        merge(runs, str(out), **SETTINGS)
    for step in random.Random(name).sample(range(len(changes)), 5):
        shutil.rmtree(place)
        with pytest.raises(Killed), killed_at(step):
            merge(runs, str(out), **SETTINGS)
        merge(runs, str(out), **SETTINGS)
        assert_same_table(read(out), expected)


def test_a_merged_shard_has_the_version_that_was_scored(tmp_path):
    """Its repaired version is in the list of the run already, and not scored yet."""
    out = UPath(tmp_path / "piece.parquet")
    score(out, ["a", "b"], broken=("b",))
    repaired = identity([*refs("a"), *refs("b", "v2")], embeddings=None)
    ScoreRun.open(ScoreLayout(out), repaired).close()
    (other,) = scored(tmp_path, [["c"]])
    merge([str(out), other], str(tmp_path / "s.parquet"), **SETTINGS)
    merged = ScoreRun.load(ScoreLayout(UPath(tmp_path / "s.parquet")))
    assert merged.scored_versions["b"] == (10, "v1")
    assert {shard.name: shard.version for shard in merged.identity.shards}["b"] == "v1"
    assert [shard.name for shard in merged.pending()] == ["b"]
