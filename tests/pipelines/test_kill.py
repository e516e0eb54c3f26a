"""SIGKILL at random moments, then the same command again: the rows of an uninterrupted run."""

import random
import signal
import subprocess
import sys
import time

import pytest

from ncclean.data.synthetic import CorpusOptions, write_corpus
from tests.pipelines.score_tables import assert_same_rows, read

COMMAND = "import sys; from ncclean_cli.app import main; main()"


def command(shards, out):
    options = ["--model", "demo", "--precision", "fp32", "--shift", "0.2", "--quiet"]
    return [sys.executable, "-c", COMMAND, "score", str(shards), "--out", str(out), *options]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s.parquet", "s"])
def test_killed_five_times_and_resumed(tmp_path, name):
    shards = tmp_path / "shards"
    write_corpus(shards, CorpusOptions(pairs=3000, shard_size=250, noise={"ncr": 0.2}), 2)
    begin = time.monotonic()
    subprocess.run(command(shards, tmp_path / "reference.parquet"), check=True)
    whole = time.monotonic() - begin
    rng = random.Random(name)
    kills = 0
    while kills < 5:
        process = subprocess.Popen(command(shards, tmp_path / name))
        try:
            # Most of the time is spent on start-up; aim at the scoring and finalizing after it.
            process.wait(timeout=whole * (0.5 + 0.5 * rng.random()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        kills += 1
        visible = [p for p in (tmp_path / name).glob("*") if not p.name.startswith((".", "_"))]
        for part in visible:
            read(part)  # nothing is ever visible half-written
    subprocess.run(command(shards, tmp_path / name), check=True)
    assert_same_rows(read(tmp_path / name), read(tmp_path / "reference.parquet"))
