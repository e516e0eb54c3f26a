"""What a measurement depends on: processor, cores, versions, and who else is at work."""

from __future__ import annotations

import os
import platform
import resource
import time
from importlib.metadata import distributions
from pathlib import Path

_PACKAGES = (
    "torch",
    "torchvision",
    "open_clip_torch",
    "pyarrow",
    "pillow",
    "webdataset",
    "ncclean",
)


def machine_facts() -> dict[str, object]:
    """Processor, cores and system."""
    import torch  # here: processes that measure their memory load no more than they need

    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that speed or results depend on."""
    installed = {one.name: one.version for one in distributions() if one.name in _PACKAGES}
    return {"python": platform.python_version(), **installed}


class OtherProcesses:
    """How many cores other processes kept busy since this was made; 0 where it cannot be told."""

    def __init__(self) -> None:
        self._start, self._seconds = time.perf_counter(), self._seconds_so_far()

    @property
    def cores(self) -> float:
        elapsed = time.perf_counter() - self._start
        return round(max(self._seconds_so_far() - self._seconds, 0.0) / elapsed, 2)

    @staticmethod
    def _seconds_so_far() -> float:
        statistics = Path("/proc/stat")
        if not statistics.is_file():
            return 0.0
        user, nice, system = map(int, statistics.read_text().split()[1:4])
        busy = (user + nice + system) / os.sysconf("SC_CLK_TCK")
        for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(whose)
            busy -= used.ru_utime + used.ru_stime
        return busy


def _cpu_model() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
