"""SIGKILL at random moments, then the same command again: the rows of an uninterrupted run."""

import random
import signal
import subprocess
import sys
import time

import pytest

from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.data.synthetic import CorpusOptions, write_corpus
from tests.data.image_layouts import LAYOUTS, write_recaptioned
from tests.pipelines.score_tables import assert_same_rows, read

COMMAND = "import sys; from ncclean_cli.app import main; main()"


def command(shards, out):
    options = ["--model", "demo", "--precision", "fp32", "--shift", "0.2", "--quiet"]
    return [sys.executable, "-c", COMMAND, "score", str(shards), "--out", str(out), *options]


def kill_and_resume(source, out, kills, rng):
    """Start again until it has been killed so often: the rows then, and those of one go."""
    reference = out.with_name("reference.parquet")
    begin = time.monotonic()
    subprocess.run(command(source, reference), check=True)
    whole = time.monotonic() - begin
    for _ in range(kills):
        process = subprocess.Popen(command(source, out))
        try:
            # Most of the time is spent on start-up; aim at the scoring and finalizing after it.
            process.wait(timeout=whole * (0.5 + 0.5 * rng.random()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        visible = [p for p in out.glob("*") if not p.name.startswith((".", "_"))]
        for part in visible:
            read(part)  # nothing is ever visible half-written
    subprocess.run(command(source, out), check=True)
    return read(out), read(reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s.parquet", "s"])
def test_killed_five_times_and_resumed(tmp_path, name):
    shards = tmp_path / "shards"
    write_corpus(shards, CorpusOptions(pairs=3000, shard_size=250, noise={"ncr": 0.2}), 2)
    assert_same_rows(*kill_and_resume(shards, tmp_path / name, 5, random.Random(name)))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["files", "Hugging Face", "imagefolder", "recaptioned"])
def test_killed_on_other_sources(tmp_path, layout):
    write_corpus(tmp_path / "shards", CorpusOptions(pairs=2400, shard_size=200), 2)
    write = {**LAYOUTS, "recaptioned": write_recaptioned}[layout]
    for number, shard in enumerate(resolve_pairs([str(tmp_path / "shards")])):
        pairs = [(one.key, one.image, one.caption) for one in read_samples(shard)]
        write(pairs, tmp_path / "source" / f"{number:02d}")
    rows = kill_and_resume(tmp_path / "source", tmp_path / "s.parquet", 3, random.Random(layout))
    assert_same_rows(*rows)
