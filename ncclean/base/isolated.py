"""Processes of this interpreter for work that may abort, never end, or take all memory."""

from __future__ import annotations

import contextlib
import json
import resource
import sys

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import main; main()"


def isolated(module: str) -> list[str]:
    """The command line that runs `main` of a module of this package.

    It is isolated, with the paths of this process: a module beside the data is never imported.
    """
    # Python passes over what is no string, such as a `Path`.
    paths = json.dumps([path for path in sys.path if isinstance(path, str) and path])
    return [sys.executable, "-I", "-c", _START.format(module), paths]


def limit_memory(size: int) -> None:
    """Let this process hold at most `size` bytes of memory of its own.

    Beyond it, allocations fail. Systems other than Linux may not keep to it.
    """
    with contextlib.suppress(OSError, ValueError):  # a stricter limit is in force
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
