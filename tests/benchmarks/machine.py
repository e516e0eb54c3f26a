"""What a measurement depends on: processor, cores, versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

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
    """Facts for the report; `load` is the number of processes that ran already before it."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def _cpu_model() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
