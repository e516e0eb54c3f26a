"""A run on Ray whose raylet, or whose agent, is killed: it ends with a sentence, and goes on."""

import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.runners.ray_cluster import SILENT_SECONDS
from tests.execution.clusters import sitecustomize

COMMAND = "import sys; from ncclean_cli.app import main; main()"
# Beyond the wait for workers: Ray notices the end of a node by missed answers.
MOST_SECONDS = SILENT_SECONDS + 120


def running(session, pattern):
    """A process of the session that has the pattern in its command line."""
    words = ["pgrep", "--session", str(session), "-f", pattern]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = subprocess.run(words, capture_output=True, text=True).stdout.split()
        if found:
            return int(found[0])
        time.sleep(0.1)
    raise AssertionError(f"no process {pattern}")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["raylet/raylet ", "^ray::DashboardAgent|dashboard/agent.py"])
def test_the_run_ends_with_a_sentence_and_goes_on(tmp_path, killed):
    write_corpus(tmp_path / "shards", CorpusOptions(pairs=40, shard_size=10, seed=3), 1)
    words = ["score", "shards", "--out", "s.parquet", "--model", "demo", "--precision", "fp32",
             "--shift", "0.2", "--engine", "ray", "--workers", "1"]  # fmt: skip
    environment = {
        **os.environ, **sitecustomize(tmp_path / "site"), "SLOW_SHARD": "00002",
        "RAY_ADDRESS": "local",  # tests at the same time have clusters, which it would join
    }  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            running(run.pid, "ray::score ")
            os.kill(running(run.pid, killed), signal.SIGKILL)
            assert run.wait(MOST_SECONDS) == 2
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    said = (tmp_path / "log").read_text("utf-8", "replace")  # after what Ray itself says
    last = said.splitlines()[-1]
    assert last.startswith("ncclean: Ray has died on this machine; what is done is kept")
    assert "Traceback" not in said

    environment.pop("SLOW_SHARD")
    subprocess.run(
        [sys.executable, "-c", COMMAND, *words], cwd=tmp_path, env=environment, check=True,
        timeout=200, capture_output=True,
    )  # fmt: skip
    assert pq.read_metadata(tmp_path / "s.parquet").num_rows == 40
