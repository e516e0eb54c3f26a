"""The `ncclean` command in this process: starting one takes seconds of imports."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from dataclasses import dataclass
from unittest import mock

from ncclean_cli.app import main

# What a test of a process gives to `python -c`.
START = "from ncclean_cli.app import main; main()"


@dataclass(frozen=True)
class Finished:
    """What a process would leave: `subprocess.CompletedProcess` in short."""

    returncode: int
    stdout: str
    stderr: str


def run(*words: object) -> Finished:
    """`ncclean WORDS`, from `main` on; the exit code is the one that the process would end with."""
    out, errors = io.StringIO(), io.StringIO()
    log = logging.getLogger("ncclean")
    level = log.level
    with (
        mock.patch.object(sys, "argv", ["ncclean", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        finally:
            log.setLevel(level)  # `--debug` is for this command alone
    assert isinstance(code, int), code
    return Finished(code, out.getvalue(), errors.getvalue())
