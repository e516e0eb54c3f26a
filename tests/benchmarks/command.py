"""The `ncclean` command in a process of its own: wall time and peak memory.

Linux counts what a process held before it became another program towards its peak, so a command
must not be started by a process that holds a model. This file is also the small program that
starts it; it imports nothing outside the standard library.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCHMARK = (sys.executable, str(Path(__file__).parent))  # then its family and name
NCCLEAN = (sys.executable, "-c", "from ncclean_cli.app import main; main()")


@dataclass(frozen=True)
class CommandRun:
    """`output` is what the command printed with `--json`."""

    seconds: float
    processor_seconds: float
    peak_mib: float
    output: dict[str, Any]


def run_ncclean(*arguments: str) -> CommandRun:
    """Run `ncclean ARGUMENTS --json --quiet`. Raises `RuntimeError` if it fails."""
    launched = subprocess.run(
        [sys.executable, __file__, *NCCLEAN, *arguments, "--json", "--quiet"],
        stdout=subprocess.PIPE,
        check=True,
    )
    facts = json.loads(launched.stdout)
    if facts["exit"] != 0:
        raise RuntimeError(f"ncclean {' '.join(arguments)} ended with {facts['exit']}")
    return CommandRun(
        facts["seconds"], facts["processor_seconds"], facts["peak_mib"], json.loads(facts["stdout"])
    )


def _launch(command: Sequence[str]) -> dict[str, object]:
    start = time.perf_counter()
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss  # KiB; bytes on macOS
    return {
        "exit": finished.returncode,
        "stdout": finished.stdout,
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_mib": peak / (1 << 20 if os.uname().sysname == "Darwin" else 1 << 10),
    }


if __name__ == "__main__":
    print(json.dumps(_launch(sys.argv[1:])))
