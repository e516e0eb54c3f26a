"""A copy of the tree in which something is broken, and the tests that run there."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Loaded once, before processes are forked: it takes longer than most tests.
_PRELOADED = (
    "torch", "torch.distributed", "torch.utils.tensorboard", "open_clip", "pytest",
    "sklearn.mixture",
    "scipy.optimize", "ot", "pyarrow.dataset", "duckdb", "upath", "numpy", "PIL.Image",
)  # fmt: skip
_COPIED = ("ncclean", "cli", "pipelines", "tests", "docs", "pyproject.toml", "README.md")
# The packages whose folders are called otherwise.
_INSTALLED = {"ncclean_cli": "cli", "ncclean_pipelines": "pipelines"}
_NAMES = ".installed"
_LOG = "tests.log"


def load_libraries() -> None:
    """Import what most tests need, for the processes that `begin_tests` forks."""
    for name in _PRELOADED:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)


def copy_tree(tree: Path) -> None:
    """Copy what the tests need to the new folder `tree`."""
    (tree / _NAMES).mkdir(parents=True)
    for name in _COPIED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tree / name)
    for package, folder in _INSTALLED.items():
        (tree / _NAMES / package).symlink_to(tree / folder)


def begin_tests(tree: Path, words: Sequence[str]) -> int:
    """Fork a process that runs pytest with these words in a tree; its number.

    It leads a process group of its own, so that it can be stopped with what its tests start.
    """
    child = os.fork()
    if child:
        return child
    os.setsid()
    with open(tree / _LOG, "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(tree)
    first = [str(tree), str(tree / _NAMES)]
    sys.path[:] = [*first, *(path for path in sys.path if path not in ("", str(ROOT)))]
    os.environ["PYTHONPATH"] = os.pathsep.join(first)
    sys.path_importer_cache.clear()
    code = 1
    try:
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *words]))
    finally:
        os._exit(code)


def first_failure(tree: Path) -> str:
    """The test that failed in the last run in a tree, with its message; "" if none did."""
    lines = (tree / _LOG).read_text("utf-8", errors="replace").splitlines()
    failed = (line for line in lines if line.startswith(("FAILED", "ERROR")))
    return next(failed, "")
