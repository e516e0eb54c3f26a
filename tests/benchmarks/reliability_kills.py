"""SIGKILL at random moments, then the same command: rows lost, doubled, different."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from records import Row
from reliability_compare import compare, half_written
from reliability_jobs import (
    EXISTS,
    FIGURES,
    Running,
    disturbed,
    emptied,
    finish_again,
    summed,
    words_of,
)

# Of the starts that are to be killed; the others may finish.
_KILLED_AGAIN = 0.7


def measure(folder: Path, kills: int, done: list[Row]) -> Iterator[Row]:
    """A row for each interrupted run, until every command has been hit `kills` times."""
    return disturbed(folder, kills, done, lambda row: len(row["kills"]), trial)


def trial(name: str, folder: Path, expected: Path, seconds: float, rows: list[Row]) -> Row:
    """Kill one run again and again, finish it, and compare."""
    seed = f"{name} {len(rows)}"
    rng = random.Random(seed)
    out, temporary = emptied(folder / "out"), emptied(folder / "tmp")
    words = words_of(name, folder / "corpus", out)
    kills: list[Row] = []
    broken: list[str] = []
    while not kills or rng.random() < _KILLED_AGAIN:
        running = Running(words, folder / "log")
        code = running.wait(seconds * rng.random())
        if code is not None:
            if code and EXISTS not in running.log.read_text("utf-8"):
                raise RuntimeError(f"{seed}: ended with {code}: {running.log.read_text()}")
            if kills:
                break
            emptied(out)  # it was faster: nothing was interrupted
            continue
        running.kill()
        files = sum(path.is_file() for path in out.rglob("*"))
        kills.append({"files": files, "temporary": _files(temporary)})
        broken += half_written(out)
    finish_again(words, folder / "log")
    difference = compare(expected, out)
    return {
        "command": name, "seed": seed, "seconds": round(seconds, 2), "kills": kills,
        **asdict(difference), "half_written": broken, "temporary_left": _files(temporary),
    }  # fmt: skip


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def summary(rows: list[Row]) -> list[Row]:
    """A row for each command: how often it was hit, where, and all that differed."""
    return summed(
        rows,
        sums=("kills", *FIGURES, "temporary_left", "half_written"),
        before_first_file=lambda some: sum(k["files"] == 0 for row in some for k in row["kills"]),
        runs=len,
        seconds=lambda some: max(row["seconds"] for row in some),
    )
