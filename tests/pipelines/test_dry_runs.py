"""What `neighbours --dry-run` and `export --dry-run` tell, against what the runs then take."""

import os
import re

import numpy as np
import pyarrow as pa
import pytest
from ncclean_pipelines.export import Export
from ncclean_pipelines.neighbours import Neighbours
from ncclean_pipelines.select import Select
from upath import UPath

from ncclean.base.config import TaskOptions
from ncclean.exporting import cost as export_cost
from ncclean.exporting.task import ShardReport
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.selection.policy import Policy
from ncclean.storage.parts import write_embeddings
from tests.neighbour_search.simulated import clustered

ROWS, DIM = 4000, 24


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    out = tmp_path_factory.mktemp("plan") / "e"
    for number in range(2):
        names = [f"{number}-{row}" for row in range(ROWS // 2)]
        table = pa.table({"uid": names, "shard": ["s"] * len(names), "key": names})
        vectors = clustered(ROWS // 2, DIM, seed=number)
        write_embeddings(UPath(out), str(number), vectors, vectors, table)
    return out


@pytest.fixture(scope="module")
def selection(scored, tmp_path_factory):
    out = tmp_path_factory.mktemp("plan") / "selection.parquet"
    policy = Policy(score="similarity", keep_fraction=0.5)
    Select(scores=[str(scored / "scores.parquet")], out=str(out), policy=policy).run()
    return out


def test_a_price_gives_the_cost_of_all_workers(corpus, selection, tmp_path, refused):
    options = {"dry_run": True, "price_per_hour": 36_000.0}
    result = exporting(corpus, selection, tmp_path / "x", **options).run()
    plan = result.summary
    assert result["cost"] == pytest.approx(36_000 * plan.hours * plan.workers)
    assert list(result.shown)[-1].endswith("at 36,000.00 for an hour of a worker")
    refused(exporting, corpus, selection, tmp_path / "x", price_per_hour=2.0)


def searching(embeddings, out, **options):
    return Neighbours(embeddings=[str(embeddings)], out=str(out), **options)


def exporting(corpus, selection, out, **options):
    return Export(selection=str(selection), shards=[str(corpus)], out=str(out), **options)


def test_a_search_is_as_large_as_it_says(embeddings, tmp_path):
    out = tmp_path / "n.parquet"
    options = NeighbourOptions(index="ivf", k=5)
    plan = searching(embeddings, out, options=options, dry_run=True).run().summary
    assert not os.listdir(tmp_path)
    assert plan.pairs == pytest.approx(ROWS, rel=0.02)
    assert (plan.dim, plan.index, plan.lists) == (DIM, "ivf", 128)
    assert 0 < plan.processor_hours_low <= plan.processor_hours < 0.1
    said = []

    class Watch:
        def say(self, text):
            said.append(text)

        def advance(self, *position, **facts): ...

    searching(embeddings, out, options=options).run(Watch())
    stages = [text.rsplit(", ", 1)[1].split()[0] for text in said if re.search(r" tasks?$", text)]
    assert plan.tasks == pytest.approx(sum(map(int, stages)), abs=5)


def test_the_limit_holds_what_all_pairs_take(embeddings, tmp_path):
    limit = 400 << 20
    command = searching(
        embeddings, tmp_path / "n.parquet", memory_limit=str(limit), dry_run=True,
        tasks=TaskOptions(workers=1),
    )  # fmt: skip
    assert command.run().summary.memory_bytes == pytest.approx(limit, rel=0.01)


def test_more_visits_cost_more_and_everything_costs_most(embeddings, tmp_path):
    plans = {
        index: searching(
            embeddings, tmp_path / "n.parquet", options=NeighbourOptions(index=index), dry_run=True
        ).run().summary
        for index in ("ivf", "flat")
    }  # fmt: skip
    assert plans["ivf"].processor_hours_low < plans["ivf"].processor_hours
    assert plans["flat"].processor_hours_low == plans["flat"].processor_hours


def test_an_export_is_as_large_as_it_says(corpus, selection, tmp_path):
    out = tmp_path / "out"
    plan = exporting(corpus, selection, out, samples_per_shard=70, dry_run=True).run().summary
    assert not out.exists()
    summary = exporting(corpus, selection, out, samples_per_shard=70).run().summary
    assert (plan.samples, plan.shards) == (summary.samples, summary.shards)
    assert plan.bytes_written == pytest.approx(summary.bytes, rel=0.2)
    assert (plan.temporary_bytes, plan.shards_done) == (0, 0)
    os.remove(out / "00000_stats.json")
    again = exporting(corpus, selection, out, samples_per_shard=70, dry_run=True).run().summary
    assert again.shards_done == summary.shards - 1
    assert again.processor_hours <= plan.processor_hours


def test_shards_that_are_done_take_no_time(corpus, selection, tmp_path, monkeypatch):
    """Ten samples a second: one shard of all is left."""
    trial = ShardReport(0, samples=10, bytes=100)
    monkeypatch.setattr(export_cost, "_first_shard", lambda options, task: (trial, 1.0, 1.0))
    out = tmp_path / "out"
    summary = exporting(corpus, selection, out, samples_per_shard=70).run().summary
    os.remove(out / "00000_stats.json")
    plan = exporting(corpus, selection, out, samples_per_shard=70, dry_run=True).run().summary
    seconds = summary.samples / summary.shards / 10
    assert plan.processor_hours == pytest.approx(seconds / 3600, abs=1e-6)
    assert plan.hours == pytest.approx(seconds / 3600, abs=1e-6)
    assert plan.busy_workers == 1


def test_an_export_has_no_more_workers_than_shards(corpus, selection, tmp_path):
    result = exporting(
        corpus, selection, tmp_path / "out", tasks=TaskOptions(workers=50), dry_run=True
    ).run()
    assert (result.summary.workers, result.summary.busy_workers) == (50, 1)
    assert result.summary.hours == pytest.approx(
        result.summary.samples / result.summary.samples_per_second / 3600, rel=0.05
    )
    assert "at most 1 can be busy" in " ".join(map(str, result.shown))


def test_a_search_has_no_more_workers_than_tasks(embeddings, tmp_path):
    options = NeighbourOptions(index="ivf", k=5)
    tasks = TaskOptions(workers=2)
    plan = searching(
        embeddings, tmp_path / "n.parquet", options=options, tasks=tasks, dry_run=True
    ).run().summary  # fmt: skip
    assert plan.workers == 1  # so few pairs are one group of lists
    assert plan.hours == plan.processor_hours


def test_shards_that_are_fetched_are_read_whole(corpus, selection, tmp_path):
    from tests import object_store

    with object_store.s3():
        object_store.upload(corpus, "s3://corpus/shards")
        command = exporting(
            "s3://corpus/shards", selection, tmp_path / "out", tasks=TaskOptions(workers=3),
            dry_run=True,
        )  # fmt: skip
        plan = command.run().summary
    sizes = [os.path.getsize(corpus / name) for name in sorted(os.listdir(corpus))]
    assert plan.bytes_read == sum(sizes)
    assert plan.temporary_bytes == 3 * max(sizes)


def test_a_uid_file_has_no_dry_run(selection, tmp_path, refused):
    refused(Export, selection=str(selection), out=str(tmp_path / "uids.npy"), dry_run=True)


def test_vectors_of_no_use_are_named(tmp_path, refused):
    table = pa.table({"uid": ["a"], "shard": ["s"], "key": ["a"]})
    nothing = np.full((1, DIM), np.nan, np.float16)
    write_embeddings(UPath(tmp_path / "e"), "0", nothing, nothing, table)
    refused(searching, tmp_path / "e", tmp_path / "n.parquet", dry_run=True)
