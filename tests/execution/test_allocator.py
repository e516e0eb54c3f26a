"""Freed memory is kept for the next batch, unless the environment says otherwise."""

import os
import subprocess
import sys

import pytest

_FAULTS = """
import resource
import numpy as np
from ncclean.execution.allocator import keep_freed_memory

keep_freed_memory()
before = 0
for turn in range(20):
    blocks = [np.ones(1 << 20) for _ in range(8)]  # of 8 MB
    del blocks
    if turn == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment):
    """Pages that the system gave after the first turn."""
    inherited = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS],
        env=inherited | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_used_again():
    assert 5 * faults() < faults(MALLOC_TRIM_THRESHOLD_="1000000")
