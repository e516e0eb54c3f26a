"""SIGKILL at random moments of a recipe, then the same command: the result of one run."""

import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.recipes.folder import RunFolder
from tests.pipelines.test_score import assert_same_rows, read

from .recipes import whole

COMMAND = "import sys; from ncclean_cli.app import main; main()"


def command(recipe, out):
    return [sys.executable, "-c", COMMAND, "run", str(recipe), "--out", str(out), "--quiet"]


def is_done(folder, stage):
    record = RunFolder(folder).record(stage)
    return record is not None and record.done


def shards_of(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.tar")}


@pytest.mark.slow
def test_killed_three_times_and_resumed(tmp_path):
    write_corpus(tmp_path / "shards", CorpusOptions(pairs=300, shard_size=50, noise={"ncr": 0.2}))
    recipe = tmp_path / "r.yaml"
    recipe.write_text(whole(tmp_path / "shards"))
    begin = time.monotonic()
    subprocess.run(command(recipe, tmp_path / "one"), check=True)
    lasted = time.monotonic() - begin
    rng = random.Random(1)
    killed = 0
    while killed < 3:
        process = subprocess.Popen(command(recipe, tmp_path / "many"))
        try:
            # Some of the time is start-up: aim behind it, at all of the stages.
            process.wait(timeout=lasted * (0.2 + 0.6 * rng.random()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        killed += 1
    subprocess.run(command(recipe, tmp_path / "many"), check=True)
    one, many = tmp_path / "one", tmp_path / "many"
    assert_same_rows(read(many / "score/scores.parquet"), read(one / "score/scores.parquet"))
    selections = (pq.read_table(run / "clean" / "selection.parquet") for run in (many, one))
    assert next(selections).equals(next(selections))
    assert shards_of(many / "kept") == shards_of(one / "kept") != {}
    assert (many / "noise/noise.json").read_text() == (one / "noise/noise.json").read_text()
    weights, expected = (
        load_file(run / "repaired" / "open_clip_model.safetensors") for run in (many, one)
    )
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    for path in (many / "stages").glob("*.jsonl"):
        assert is_done(many, path.stem), path.name
