"""Exit codes, and errors as one sentence.

0: done; 1: finished, but some shard failed, or no pair was scored or kept; 2: wrong usage or input;
130: interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

import typer

from ncclean.base.visible_text import MessageFormatter, message

P = ParamSpec("P")
R = TypeVar("R")

SOME_FAILED = 1
USAGE = 2
INTERRUPTED = 130


def one_sentence(resume_hint: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a command so that exceptions become a sentence on stderr and an exit code.

    `resume_hint` is printed when the command is interrupted.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            has_come = threading.Event()

            def stop(number: int, frame: FrameType | None) -> None:
                # DuckDB runs this while computing, and then raises its own error.
                has_come.set()
                signal.default_int_handler(number, frame)

            # A batch system's SIGTERM ends a run the same way as Ctrl-C.
            signal.signal(signal.SIGTERM, stop)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a background job's is
                signal.signal(signal.SIGINT, stop)
            try:
                with _queries_end_by_signals(has_come):
                    return function(*args, **kwargs)
            except BrokenPipeError:
                raise typer.Exit(0) from None
            except (typer.Exit, typer.Abort, typer.BadParameter):
                raise
            except (Exception, KeyboardInterrupt) as error:
                # An interrupted query may raise before Python's own handler runs.
                if isinstance(error, KeyboardInterrupt) or has_come.is_set():
                    hint = f": {resume_hint}" if resume_hint else ""
                    _say(f"interrupted{hint}")
                    raise typer.Exit(INTERRUPTED) from None
                if logging.getLogger("ncclean").isEnabledFor(logging.DEBUG):
                    print(message(traceback.format_exc()), end="", file=sys.stderr)
                _say(_sentence(error))
                raise typer.Exit(USAGE) from None

        return run

    return decorate


@contextlib.contextmanager
def _queries_end_by_signals(has_come: threading.Event) -> Iterator[None]:
    """Interrupt DuckDB on a signal: Python's own handler waits until a query has ended."""
    read, write = os.pipe()
    os.set_blocking(write, False)

    def interrupt() -> None:
        with open(read, "rb", buffering=0) as signals:
            while signals.read(1):
                has_come.set()
                if catalog := sys.modules.get("ncclean.storage.catalog"):
                    catalog.interrupt_queries()

    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=interrupt, name="ncclean-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)


def _sentence(error: Exception) -> str:
    from ncclean.errors import NccleanError

    if isinstance(error, NccleanError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        from ncclean.base.store_errors import explain

        return explain(error.filename or "the output", error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and _is_of_memory(error):
        return (
            f"a process may map {limit >> 20:,} MB of memory here (`ulimit -v`), and torch alone "
            "maps several GB, most of which it never uses: set `ulimit -v unlimited`, and limit a "
            "container or a job instead"
        )
    if _is_of_torchvision(error):
        return (
            f"torchvision does not fit torch ({text}): install both with one command, from the "
            "same place: pip install --force-reinstall torch torchvision"
        )
    return f"unexpected {type(error).__name__}: {text} (--debug shows where)"


def _is_of_memory(error: Exception) -> bool:
    """Check whether memory was unavailable, or a library could not be mapped into it."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("failed to map segment", "Cannot allocate memory")
    )


def _is_of_torchvision(error: Exception) -> bool:
    """Check whether torchvision failed to import, as when built for another torch."""
    if not isinstance(error, ImportError | RuntimeError | AttributeError | OSError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return "torchvision::" in str(error) or any(
        frame.name == "<module>" and "torchvision" in Path(frame.filename).parts for frame in frames
    )


def _say(text: str) -> None:
    print(f"ncclean: {message(text)}", file=sys.stderr, flush=True)


def set_up_logging(debug: bool) -> None:
    # Images past Pillow's own bound are rejected by ours; its warning would repeat that.
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
    level = logging.DEBUG if debug else logging.WARNING
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MessageFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("ncclean").setLevel(level)
