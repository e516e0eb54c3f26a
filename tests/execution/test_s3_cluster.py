"""A corpus in S3, scored, selected and exported on two nodes; the driver killed again and again."""

import hashlib
import os
import random
import subprocess
import sys
import tempfile

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.export import Export
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select

from ncclean.selection.policy import Policy
from tests import object_store
from tests.command_line import START
from tests.execution import clusters
from tests.factories import rendered
from tests.pipelines.score_tables import assert_same_rows, read

pytestmark = pytest.mark.slow
POLICY = Policy(method="noise-probability", weights="osa_weight")
KILLS = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Shards, and what one process on this machine makes of them."""
    folder = tmp_path_factory.mktemp("corpus")
    rendered(folder / "shards", pairs=1200, shard_size=60, noise={"ncr": 0.2}, broken=0.02, seed=6)
    scores, selection = str(folder / "scores.parquet"), str(folder / "selection.parquet")
    Score(
        shards=[str(folder / "shards")], out=scores, model="demo", precision="fp32", shift=0.2
    ).run()
    Select(scores=[scores], out=selection, policy=POLICY).run()
    Export(
        selection=selection,
        shards=[str(folder / "shards")],
        out=str(folder / "clean"),
        samples_per_shard=45,
    ).run()
    return folder


def run_through_kills(words, rng, scratch):
    """The command, its driver killed at random moments; how often that was before it was done."""
    command = [sys.executable, "-c", START, *map(str, words)]
    for kills in range(KILLS + 1):
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env={**os.environ, "TMPDIR": str(scratch)},
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            _, errors = process.communicate(timeout=rng.uniform(2, 12) if kills < KILLS else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            continue
        assert process.returncode == 0, errors
        break
    return kills


def tar_files(*folders):
    return [path for folder in folders for path in folder.rglob("*.tar")]


@pytest.mark.parametrize("seed", [0, 1])
def test_scored_selected_and_exported_without_a_local_copy(corpus, tmp_path, seed):
    rng, scratch = random.Random(seed), tmp_path / "scratch"
    scratch.mkdir()
    with (
        object_store.s3(),
        # Ray's sockets keep out of a folder with a name this long.
        clusters.environment({"TMPDIR": str(scratch), "RAY_TMPDIR": tempfile.gettempdir()}),
        clusters.cluster(tmp_path / "site", [1, 1]) as made,
    ):
        object_store.upload(corpus / "shards", "s3://corpus/shards")
        on = ["--ray-address", made.address]
        scores, selection = "s3://corpus/scores.parquet", "s3://corpus/selection.parquet"
        model = ["--model", "demo", "--precision", "fp32", "--shift", "0.2"]
        kills = run_through_kills(
            ["score", "s3://corpus/shards", "--out", scores, *model, *on, "--workers", 2],
            rng,
            scratch,
        )
        rule = ["--method", "noise-probability", "--weights", "osa_weight"]
        kills += run_through_kills(["select", scores, "--out", selection, *rule], rng, scratch)
        source = ["--shards", "s3://corpus/shards", "--samples-per-shard", 45]
        kills += run_through_kills(
            ["export", selection, *source, "--out", "s3://corpus/clean", *on], rng, scratch
        )
        assert not tar_files(scratch)
        system, copy = object_store.filesystem(), tmp_path / "copy"
        copy.mkdir()
        system.get_file("corpus/scores.parquet", str(copy / "scores.parquet"))
        system.get_file("corpus/selection.parquet", str(copy / "selection.parquet"))
        left = [path for path in system.find("corpus") if ".work" in path or "tmp" in path]
        for shard in system.glob("corpus/clean/*.tar"):
            system.get_file(shard, str(copy / shard.rsplit("/", 1)[1]))
    assert kills >= 3
    assert_same_rows(read(copy / "scores.parquet"), read(corpus / "scores.parquet"))
    ours, theirs = (pq.read_table(f / "selection.parquet") for f in (copy, corpus))
    assert ours.column("uid").to_pylist() == theirs.column("uid").to_pylist()
    assert digests(copy) == digests(corpus / "clean")
    assert not [path for path in left if path.endswith(".tar")], left


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.tar")
    }
