"""A command in a session of its own: time, the memory of all its processes, a kill.

What several processes share counts once in `peak_mib`. Memory is read from /proc while the command
works: Linux counts what a process held before it became another program towards `ru_maxrss`.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCHMARK = (sys.executable, str(Path(__file__).parent))  # then its family and name
NCCLEAN = (sys.executable, "-c", "from ncclean_cli.app import main; main()")
_INTERVAL = 0.2  # seconds between two looks at the memory
# As ncclean sets it for itself: OpenMP's workers spin while they wait, which costs the more the
# busier a machine is.
_PATIENCE = {"GOMP_SPINCOUNT": "1000"}


@dataclass(frozen=True)
class Finished:
    """A command that has ended: `exit` is negative for a signal.

    Time of the processor and memory are those of all its processes. `peak_mib` is proportional,
    `anonymous_mib` is without mapped files, `first_mib` the same of the command's first process.
    """

    exit: int
    seconds: float
    processor_seconds: float
    peak_mib: float
    anonymous_mib: float
    first_mib: float
    output: str

    def json(self) -> dict[str, Any]:
        """What `ncclean ... --json --quiet` printed. Raises `RuntimeError` if it failed."""
        if self.exit:
            raise RuntimeError(f"the command ended with {self.exit}: {self.output[-2000:]}")
        printed: dict[str, Any]
        printed, _ = json.JSONDecoder().raw_decode(self.output, self.output.index("{"))
        return printed


class Memory:
    """The largest memory, in MiB, of a process and of its session while it lives."""

    def __init__(self, pid: int) -> None:
        self.first = self.anonymous = self.proportional = 0.0
        self._pid, self._session = pid, os.getsid(pid)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while Path(f"/proc/{self._pid}").exists():
            sizes = dict(filter(None, map(self._size, Path("/proc").glob("[0-9]*"))))
            self.first = max(self.first, sizes.get(self._pid, (0, 0))[0])
            for name, kind in (("anonymous", 0), ("proportional", 1)):
                total = sum(size[kind] for size in sizes.values())
                setattr(self, name, max(getattr(self, name), total))
            time.sleep(_INTERVAL)

    def _size(self, process: Path) -> tuple[int, tuple[float, float]] | None:
        """Anonymous and proportional memory of a process of the session."""
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended in the meantime
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == self._session:
                rollup = (process / "smaps_rollup").read_text()
                found = dict(re.findall(r"^(Anonymous|Pss):\s+(\d+)", rollup, re.MULTILINE))
                sizes = float(found["Anonymous"]) / 1024, float(found["Pss"]) / 1024
                return int(process.name), sizes
        return None


def run(
    command: Sequence[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    kill_after: float = 86_400.0,
    kill_when: Callable[[], bool] = lambda: False,
) -> Finished:
    """Run a command to its end; kill its processes after `kill_after` seconds or at `kill_when`.

    What it prints goes to `log`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    used, start = children_seconds(), time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_PATIENCE, **(environment or {})},
            start_new_session=True,
        )
        memory = Memory(process.pid)
        while process.poll() is None:
            if time.perf_counter() - start > kill_after or kill_when():
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_INTERVAL)
    return Finished(
        exit=process.returncode,
        seconds=time.perf_counter() - start,
        processor_seconds=children_seconds() - used,
        peak_mib=memory.proportional,
        anonymous_mib=memory.anonymous,
        first_mib=memory.first,
        output=log.read_text("utf-8", errors="replace"),
    )


def run_ncclean(*arguments: object) -> Finished:
    """Run `ncclean ARGUMENTS --json --quiet`. Raises `RuntimeError` if it fails."""
    with tempfile.TemporaryDirectory(prefix="ncclean-") as folder:
        command = [*NCCLEAN, *map(str, arguments), "--json", "--quiet"]
        finished = run(command, Path(folder, "log"))
    finished.json()
    return finished


def in_process(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Call a function in a process of its own: its `result`, seconds and peak of memory in GB.

    The process is forked from one that holds nothing, so the peak is the function's own.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_measured, function, arguments).result()


def _measured(function: Callable[..., Any], arguments: Sequence[Any]) -> dict[str, Any]:
    begin = time.perf_counter()
    result = function(*arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": time.perf_counter() - begin,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_gb": used.ru_maxrss / 1e6,
        **({"result": result} if result is not None else {}),
    }


def resident_bytes() -> int:
    """The memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def children_seconds() -> float:
    """The processor time of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
