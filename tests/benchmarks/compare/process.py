"""A command of a peer in a session of its own: time, memory of all its processes, a kill."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_INTERVAL = 0.2  # seconds between two looks at the memory
_KILOBYTES = 1 << 10
# OpenMP's workers spin while they wait, which costs the more the busier a machine is. ncclean sets
# this for itself; here every tool has it, so that a shared machine slows none more than another.
_PATIENCE = {"GOMP_SPINCOUNT": "1000"}


@dataclass(frozen=True)
class Finished:
    """`exit` is negative for a signal; the processor's time and the memory are of all processes."""

    exit: int
    seconds: float
    processor_seconds: float
    peak_mib: float
    output: str


def run(
    command: Sequence[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    kill_after: float | None = None,
    kill_when: Callable[[], bool] | None = None,
    limit: float = 900.0,
) -> Finished:
    """Run `command` to its end, or until all its processes are killed.

    They are after `kill_after` seconds, and as soon as `kill_when` holds. What the command prints
    goes to `log`. One that takes longer than `limit` is killed as well.
    """
    peak, used = 0.0, _processor_seconds()
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_PATIENCE, **(environment or {})},
            start_new_session=True,
        )
        ends = limit if kill_after is None else kill_after
        while process.poll() is None:
            if time.perf_counter() - start > ends or (kill_when is not None and kill_when()):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
            if kill_after is None:
                peak = max(peak, _proportional_memory(process.pid))
            time.sleep(_INTERVAL)
    seconds = time.perf_counter() - start
    return Finished(
        exit=process.returncode,
        seconds=seconds,
        processor_seconds=_processor_seconds() - used,
        peak_mib=peak / _KILOBYTES,
        output=log.read_text("utf-8", errors="replace"),
    )


def _processor_seconds() -> float:
    """Of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _proportional_memory(session: int) -> float:
    """KiB of all processes of a session; what several of them share counts once."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            rollup = (status.parent / "smaps_rollup").read_text()
        except (OSError, ValueError):  # it has ended in the meantime
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line[:4] == "Pss:")
    return float(total)
