"""A run on Ray whose raylet, or whose agent, is killed: it ends with a sentence, and goes on."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from ncclean.runners.ray_cluster import SILENT_SECONDS
from tests.execution.clusters import sitecustomize
from tests.factories import rendered

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


WORDS = ["score", "shards", "--out", "s.parquet", "--model", "demo", "--precision", "fp32",
         "--shift", "0.2", "--device", "cpu", "--engine", "ray", "--workers", "1"]  # fmt: skip


@contextlib.contextmanager
def scoring(folder):
    """A run that never ends by itself, in a session of its own; its environment."""
    rendered(folder / "shards", pairs=40, shard_size=10, seed=3)
    environment = {
        **os.environ, **sitecustomize(folder / "site"), "SLOW_SHARD": "00002",
        "RAY_ADDRESS": "local",  # tests at the same time have clusters, which it would join
    }  # fmt: skip
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *WORDS],
            cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        running(run.pid, "ray::score ")
        yield run, environment
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)


def check_that_it_goes_on(folder, environment):
    environment.pop("SLOW_SHARD")
    subprocess.run(
        [sys.executable, "-c", COMMAND, *WORDS], cwd=folder, env=environment, check=True,
        timeout=200, capture_output=True,
    )  # fmt: skip
    assert pq.read_metadata(folder / "s.parquet").num_rows == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "sentence"),
    [
        ("raylet/raylet ", "Ray has died on this machine"),
        ("^ray::DashboardAgent|dashboard/agent.py", "Ray has died on this machine"),
        ("gcs/gcs_server ", "the head of the Ray cluster "),
    ],
)
def test_the_run_ends_with_a_sentence_and_goes_on(tmp_path, killed, sentence):
    with scoring(tmp_path) as (run, environment):
        os.kill(running(run.pid, killed), signal.SIGKILL)
        assert run.wait(MOST_SECONDS) == 2
    said = (tmp_path / "log").read_text("utf-8", "replace")  # after what Ray itself says
    last = said.splitlines()[-1]
    assert last.startswith(f"ncclean: {sentence}")
    assert "what is done is kept" in last
    assert "Traceback" not in said
    check_that_it_goes_on(tmp_path, environment)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_is_told_to_end_says_so_in_its_own_words(tmp_path, number):
    with scoring(tmp_path) as (run, environment):
        run.send_signal(number)
        assert run.wait(30) == 130
    said = (tmp_path / "log").read_text("utf-8", "replace")
    assert said.splitlines()[-1].startswith("ncclean: interrupted: ")
    assert "SIGTERM received" not in said  # Ray's stack of C++
    assert "Traceback" not in said
    check_that_it_goes_on(tmp_path, environment)
