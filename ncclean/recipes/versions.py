"""The versions that a run was made with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import ncclean

_PACKAGES = ("torch", "open_clip_torch", "torchvision", "numpy", "pyarrow", "duckdb", "ray")


def versions() -> dict[str, str]:
    """The versions of ncclean, Python and the libraries that results may depend on."""
    packages = {"ncclean": ncclean.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return packages
