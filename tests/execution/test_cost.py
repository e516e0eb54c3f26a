"""The arithmetic of docs/scale.md."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ncclean.execution.cost import Rates, embedding_bytes, estimate

BENCHMARK = (sys.executable, str(Path(__file__).parents[1] / "benchmarks"))


def test_a_billion_pairs_at_the_papers_speed_take_its_75_hours():
    # OSA: 566,435 pairs in 153 s on one RTX 3090.
    rates = Rates(pairs_per_second=566_435 / 153, input_bytes=20_000)
    cost = estimate(1_000_000_000, rates, workers=10)
    assert cost.worker_hours == pytest.approx(75.0, abs=0.1)
    assert cost.hours == pytest.approx(7.5, abs=0.01)
    assert cost.shards == 100_000
    assert cost.bytes_read > 20e12


@pytest.mark.parametrize(
    ("shards", "workers", "busy", "rounds"),
    [(8, 64, 8, 1), (8, 8, 8, 1), (8, 5, 5, 2), (9, 4, 4, 3), (1, 16, 1, 1)],
)
def test_a_shard_is_one_worker_s(shards, workers, busy, rounds):
    """More workers than shards change nothing; what does not divide leaves some without work."""
    rates = Rates(pairs_per_second=10, input_bytes=100)
    cost = estimate(36_000 * shards, rates, shards=shards, workers=workers)
    assert cost.busy_workers == busy
    assert cost.hours == pytest.approx(rounds)
    assert cost.worker_hours == pytest.approx(shards)
    assert cost.read_bytes_per_second == 1000 * busy


def test_embeddings_are_two_vectors_of_two_bytes_a_number():
    assert embedding_bytes(1_000, 512) == 1_000 * 512 * 2 * 2
    bare, whole = (
        estimate(1_000, Rates(pairs_per_second=1, input_bytes=1, embedding_dim=dim))
        for dim in (0, 512)
    )
    assert whole.bytes_written - bare.bytes_written == embedding_bytes(1_000, 512)


def test_rates_must_be_positive():
    with pytest.raises(ValueError, match="positive"):
        estimate(10, Rates(pairs_per_second=0, input_bytes=1))


def test_the_script_prints_json():
    command = [*BENCHMARK, "scale.cost", "--pairs", "1e6"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["pairs"] == 1_000_000
    assert found["worker_hours"] == pytest.approx(1e6 / 2755.158 / 3600)  # of the record


def test_a_price_is_hours_at_the_rates_given():
    words = ["--pairs", "1e9", "--core-hour", "1", "--gpu-hour", "0"]
    command = [*BENCHMARK, "scale.billion", *words]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()[2:]]
    assert [row[0].split("`")[1] for row in rows if "`" in row[0]] == [
        "score", "score", "score", "neighbours", "export",
    ]  # fmt: skip
    assert rows[0][2] == "101"  # GPU-hours, at the speed in the record of the GPU
    for row in rows:
        hours, price = (float(cell.replace(",", "")) for cell in (row[1], row[5]))
        assert price == pytest.approx(hours, abs=0.51)
