"""A disk that is full from a random moment on, then has space again: what the command says and
leaves, and what the same command makes of it.

The disk is a tmpfs, so this takes root.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from records import Row
from reliability_compare import compare, half_written
from reliability_jobs import FIGURES, Running, disturbed, finish_again, summed, words_of

_MEGABYTES = 32  # a small one is filled at once
_TRAINED_MEGABYTES = 1024  # where there are checkpoints
_CHUNK = 64 << 10
_POLL_SECONDS = 0.01
_LATEST = 0.6  # of the time that a run takes: it must have something to write still
_SENTENCE = "no space left"


def measure(folder: Path, count: int, done: list[Row]) -> Iterator[Row]:
    """A row for each time that a disk was full, `count` times for every command."""
    return disturbed(folder, count, done, lambda row: row["code"] != 0, trial)


def trial(name: str, folder: Path, expected: Path, seconds: float, rows: list[Row]) -> Row:
    """Fill the disk at a random moment, see how the command ends, and give it again."""
    seed = f"{name} {len(rows)}"
    rng = random.Random(seed)
    seconds *= 0.5 ** sum(row["code"] == 0 for row in rows)  # it was faster than the first time
    megabytes = _TRAINED_MEGABYTES if name in ("finetune", "run") else _MEGABYTES
    with _disk(folder / "disk", megabytes) as disk:
        out = disk / "out"
        out.mkdir()
        words = words_of(name, folder / "corpus", out)
        temporary = disk / "tmp" if rng.random() < 0.5 else folder / "tmp"
        temporary.mkdir(exist_ok=True)
        log = folder / "log"
        running = Running(words, log, temporary)
        code = running.wait(_LATEST * seconds * rng.random())
        while code is None:
            _fill(disk / "filler")
            code = running.wait(_POLL_SECONDS)
        text = log.read_text("utf-8", "replace")
        broken = half_written(out)
        (disk / "filler").unlink(missing_ok=True)
        finish_again(words, log)
        difference = compare(expected, out)
    return {
        "command": name, "seed": seed, "code": code, "said": text.strip()[-300:],
        "is_one_sentence": _SENTENCE in text and "Traceback" not in text,
        "temporary_too": temporary.is_relative_to(disk), **asdict(difference),
        "half_written": broken,
    }  # fmt: skip


def _fill(filler: Path) -> None:
    """Take all the space that there is."""
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(_CHUNK)):
            pass


@contextlib.contextmanager
def _disk(folder: Path, megabytes: int) -> Iterator[Path]:
    if os.geteuid() != 0:
        raise PermissionError("a small file system can be mounted by root alone")
    folder.mkdir(exist_ok=True)
    size = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def summary(rows: list[Row]) -> list[Row]:
    """A row for each command: how often its disk was full, what it said, what differed after."""
    full = [row for row in rows if row["code"] != 0]
    return summed(
        full,
        sums=("half_written", *FIGURES),
        full=len,
        one_sentence=lambda some: sum(row["is_one_sentence"] for row in some),
    )
