"""A process within its limits."""

import signal
import subprocess
import sys

LOOP = """
from ncclean.workers.worker import limit_seconds
limit_seconds(0.2)
while True:
    pass
"""


def test_a_process_without_progress_is_ended():
    """Not by who waits for it, which would wait for ever."""
    assert subprocess.run([sys.executable, "-c", LOOP], timeout=60).returncode == -signal.SIGPROF
