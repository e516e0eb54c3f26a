"""SIGKILL at random moments, then the same command: rows lost, doubled, different."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reliability_compare import compare, half_written
from reliability_jobs import COMMANDS, Running, finish, words_of, write_corpora

# Of the starts that are to be killed; the others may finish.
_KILLED_AGAIN = 0.7


def measure(folder: Path, kills: int, done: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each interrupted run, until every command has been hit `kills` times."""
    corpus = write_corpora(folder)
    for name in COMMANDS:
        mine = [row for row in done if row["command"] == name]
        hits = sum(len(row["kills"]) for row in mine)
        number = len(mine)
        if hits >= kills:
            continue
        expected = folder / "expected" / name
        shutil.rmtree(expected, ignore_errors=True)
        expected.mkdir(parents=True)
        seconds = finish(words_of(name, corpus, expected), folder / "log")
        while hits < kills:
            row = trial(name, folder, expected, seconds, number, kills - hits)
            hits += len(row["kills"])
            number += 1
            yield row


def trial(
    name: str, folder: Path, expected: Path, seconds: float, number: int, at_most: int
) -> dict[str, Any]:
    """Kill one run again and again, finish it, and compare."""
    seed = f"{name} {number}"
    rng = random.Random(seed)
    out, temporary = folder / "out", folder / "tmp"
    for place in (out, temporary):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    words = words_of(name, folder / "corpus", out)
    kills: list[dict[str, Any]] = []
    broken: list[str] = []
    while len(kills) < at_most and (not kills or rng.random() < _KILLED_AGAIN):
        running = Running(words, folder / "log")
        code = running.wait(seconds * rng.random())
        if code is not None:
            if code and "exists; use --overwrite" not in running.log.read_text("utf-8"):
                raise RuntimeError(f"{seed}: ended with {code}: {running.log.read_text()}")
            if kills:
                break
            shutil.rmtree(out)  # it was faster: nothing was interrupted
            out.mkdir()
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


def finish_again(words: list[str], log: Path) -> None:
    """Run it to its end; `neighbours` ends with 2 where its table was finished already."""
    running = Running(words, log)
    code = running.wait()
    if code and not (code == 2 and "exists; use --overwrite" in log.read_text("utf-8")):
        raise RuntimeError(f"ncclean {' '.join(words)} ended with {code}: {log.read_text()}")


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each command: how often it was hit, where, and all that differed."""
    found = []
    for command in dict.fromkeys(row["command"] for row in rows):
        mine = [row for row in rows if row["command"] == command]
        kills = [kill for row in mine for kill in row["kills"]]
        figures = ("lost", "doubled", "different", "files_missing", "files_left", "temporary_left")
        found.append({
            "command": command,
            "kills": len(kills),
            "before_first_file": sum(kill["files"] == 0 for kill in kills),
            "runs": len(mine),
            "rows": sum(row["rows"] for row in mine),
            **{name: sum(row[name] for row in mine) for name in figures},
            "half_written": sum(len(row["half_written"]) for row in mine),
            "seconds": max(row["seconds"] for row in mine),
        })  # fmt: skip
    return found
