"""SIGKILL while an export writes images or Parquet, then the same command again: all of it."""

import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from tests.data.image_layouts import read
from tests.exporting.test_export_layouts import facts, select
from tests.factories import rendered

COMMAND = "import sys; from ncclean_cli.app import main; main()"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["folder", "csv", "parquet", "one.parquet"])
def test_killed_and_resumed(name, tmp_path):
    shards = tmp_path / "shards"
    rendered(shards, workers=2, pairs=1500, shard_size=500)
    chosen, _ = select(shards, folder=tmp_path)
    out = tmp_path / name
    layout = "parquet" if name == "one.parquet" else name
    words = ["export", chosen, "--shards", shards, "--out", out, "--layout", layout, "-q"]
    words += ["--samples-per-shard", 150, "--workers", 1]
    command = [sys.executable, "-c", COMMAND, *map(str, words)]
    rng = random.Random(name)
    begin = time.monotonic()
    subprocess.run([*command[:-1], "1", "--out", str(tmp_path / f"whole-{name}")], check=True)
    whole = time.monotonic() - begin
    for _ in range(5):
        process = subprocess.Popen(command)
        try:
            process.wait(timeout=whole * (0.3 + 0.7 * rng.random()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for file in tmp_path.glob("parquet/*.parquet"):
            pq.read_table(file)  # never half-written
    subprocess.run(command, check=True)
    samples, errors = read(out)
    assert errors == []
    expected, _ = read(shards)
    assert facts(samples) == facts(expected)
