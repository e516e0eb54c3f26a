"""The frame of a benchmark: its command line, and the record of what it measures.

A record is one JSON file with all that it takes to judge and repeat a measurement.
`docs/figures.py` writes the tables of the pages from the records in `docs/records`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from machine import machine_facts, package_versions

ROOT = Path(__file__).parents[2]
# What a measurement depends on; pages and earlier records are not part of it.
_CODE = ("ncclean", "pipelines", "cli", "tests/benchmarks")

Row = dict[str, Any]


def benchmark(measure: Callable[..., Iterable[Row]], **settings: Any) -> None:
    """Run a function that yields the rows of a record as a command.

    Its parameters are the options; one without a default must be given, and a sequence takes
    several values. Each row is printed, and with `--record` the file is written anew after it, so
    that an interrupted run leaves what it has. The record's seeds are the parameter `seed` or
    `seeds`, its settings are `settings` and all other parameters except paths. A generator may
    return further facts for the record.
    """
    options = vars(_parser(measure).parse_args())
    path = options.pop("record")
    seeds = options.get("seeds", [options.get("seed", 0)])
    for name, value in options.items():
        if name not in ("seed", "seeds") and not isinstance(value, Path):
            settings.setdefault(name, value)
    rows: list[Row] = []
    facts: dict[str, Any] = {}

    def collected() -> Generator[Row, None, None]:
        facts.update((yield from measure(**options)) or {})

    def save() -> None:
        if path is not None:
            write_record(path, make_record(rows, **{"settings": settings, "seeds": seeds, **facts}))

    for row in collected():
        rows.append(row)
        print(json.dumps(row), flush=True)
        save()
    save()


def _parser(measure: Callable[..., Any]) -> argparse.ArgumentParser:
    """The options of a function: `name: int = 3` is `--name N`, `name: bool = False` a flag."""
    documentation = inspect.getmodule(measure).__doc__ or ""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", "--json", type=Path, metavar="FILE", help="write a record")
    hints = get_type_hints(measure)
    for name, parameter in inspect.signature(measure).parameters.items():
        flag, default = f"--{name.replace('_', '-')}", parameter.default
        if default is False:
            parser.add_argument(flag, action="store_true")
            continue
        kind = next(one for one in (*get_args(hints[name]), hints[name]) if one is not NoneType)
        several = isinstance(default, (list, tuple))
        parser.add_argument(
            flag,
            type=kind,
            nargs="+" if several else None,
            default=None if default is parameter.empty else default,
            required=default is parameter.empty,
            help=None if default is parameter.empty else f"default: {default}".replace("%", "%%"),
        )
    return parser


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
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
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
    words = [re.sub(r"(^|=)/.*/", r"\1", word) for word in sys.argv[1:]]
    return shlex.join(["python", *started, *words])


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


# As the process started: a run may last for hours, in which others commit.
CODE_VERSION = _code_version()
