"""Processes that share tasks: they never run the caller's script, and say why they died."""

import signal
import subprocess
import sys

import pytest

from ncclean.errors import NccleanError
from ncclean.runners.process_runner import Processes

SCRIPT = """
print("the script runs")
from ncclean.runners.process_runner import Processes
with Processes(2) as processes:
    print(sorted(processes.map(abs, ((n, (-n,)) for n in range(4)))))
"""


def test_a_script_without_a_guard_runs_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert said.stdout == "the script runs\n[(0, 0), (1, 1), (2, 2), (3, 3)]\n"
    assert said.stderr == ""


def test_a_process_that_is_killed_has_a_sentence():
    with Processes(2) as processes, pytest.raises(NccleanError, match="the same command goes on"):
        list(processes.map(signal.raise_signal, ((0, (signal.SIGKILL,)),)))
