"""The record of a measurement: one JSON file with all that it takes to judge and repeat it.

`docs/figures.py` writes the tables of the pages from the records in `docs/records`. A record is
what a script measured, never what a page said.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from machine import machine_facts, package_versions

ROOT = Path(__file__).parents[2]
# What a measurement depends on; pages and earlier records are not part of it.
_CODE = ("ncclean", "pipelines", "cli", "tests/benchmarks")


def make_record(
    rows: Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    **more: Any,
) -> dict[str, Any]:
    """The envelope around the rows; `more` are further facts about the run as a whole."""
    return {
        "command": command_line(),
        **CODE_VERSION,
        "date": now(),
        "versions": package_versions(),
        "machine": machine_facts(),
        "settings": dict(settings or {}),
        "seeds": list(seeds),
        **more,
        "rows": [dict(row) for row in rows],
    }


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Indented, one value a line, so that two versions can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def command_line() -> str:
    """The command as typed, less the folders of absolute paths: records are published."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else Path(script.name)
    started = [str(name)]
    if script.parent.parent == Path(__file__).resolve().parent:  # of a family, see `__main__.py`
        started = [str(name.parent.parent), f"{script.parent.name}.{script.stem}"]
    words = [_without_folders(word) for word in sys.argv[1:]]
    return shlex.join(["python", *started, *words])


def _without_folders(word: str) -> str:
    option, equals, value = word.partition("=")
    if equals and Path(value).is_absolute():
        return f"{option}={Path(value).name}"
    return Path(word).name if Path(word).is_absolute() else word


def _code_version() -> dict[str, Any]:
    """`commit`, and `dirty`: whether the code has changes that the commit lacks."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    changes = _git("status", "--porcelain", "--", *_CODE)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(*arguments: str) -> str | None:
    """What git prints; None without git, or outside a repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def now() -> str:
    """UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# As the process started: a run may last for hours, in which others commit.
CODE_VERSION = _code_version()
