"""Connecting to Ray: a dead cluster is not waited for."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ncclean.runners.process_runner import clock_share

START = """
import logging, ray
from ncclean.runners.ray_cluster import connect
logging.basicConfig()
assert connect(None)
print(len(ray.nodes()))
"""


@pytest.mark.slow
def test_the_address_that_a_killed_cluster_left_is_not_waited_for():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{free.getsockname()[1]}"
    # Ray's sockets lie in this folder, and their paths may not be long.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        (Path(folder) / "ray").mkdir()
        (Path(folder) / "ray/ray_current_cluster").write_text(dead)
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", START], env={**os.environ, "RAY_TMPDIR": folder},
            capture_output=True, text=True, timeout=150,
        )  # fmt: skip
    assert done.stdout == "1\n"
    assert f"no Ray cluster answers at {dead} any more; starting one here" in done.stderr
    assert time.monotonic() - begun < 120


# How long several processes take together.


@pytest.mark.parametrize(
    ("tasks", "workers", "share"), [(8, 64, 1 / 8), (8, 4, 1 / 4), (5, 4, 2 / 5), (1, 1, 1)]
)
def test_workers_do_not_share_a_task(tasks, workers, share):
    assert clock_share(tasks, workers) == pytest.approx(share)
