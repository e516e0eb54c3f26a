"""Run work that may abort, never end, or exhaust memory in processes of this interpreter."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import main; main()"


def isolated(module: str) -> list[str]:
    """The command line that runs `main` of a module of this package.

    It is isolated, with the paths of this process: a module beside the data is never imported.
    """
    # Python ignores non-strings, such as a `Path`.
    paths = json.dumps([path for path in sys.path if isinstance(path, str) and path])
    return [sys.executable, "-I", "-c", _START.format(module), paths]


def limit_memory(size: int) -> None:
    """Limit this process to `size` bytes of its own memory.

    Beyond it, allocations fail. Systems other than Linux may not enforce it.
    """
    with contextlib.suppress(OSError, ValueError):  # a stricter limit is in force
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


class SpawnedProcesses(ProcessPoolExecutor):
    """A pool of new interpreters, which do not rerun the caller's script.

    A fork would copy the threads of torch, if it has been loaded.
    """

    def __init__(self, workers: int, begin: Callable[[], None] | None = None) -> None:
        super().__init__(workers, multiprocessing.get_context("spawn"), begin)

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        with _no_script():  # processes start with the tasks that need them
            return super().submit(function, *args, **kwargs)


@contextlib.contextmanager
def _no_script() -> Iterator[None]:
    """Hide the caller's script from multiprocessing, whose children would run it."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
