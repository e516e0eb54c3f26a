"""Rows per second of finalize, to one file and to a folder, on simulated parts.

The parts hold what a web corpus would: distinct uids, captions, urls, every score column. Timed
is `ncclean score --finalize-only`'s work, from the parts to the final files.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from measure import Row, Setting, Target, take_turns
from ncclean_pipelines.score import Score
from scale import simulated

from ncclean.storage.layout import ScoreLayout

_PART_ROWS = 10_000
_REPEATS = 3


def run(setting: Setting) -> list[Row]:
    rows = _PART_ROWS * setting.choose(full=200, quick=20)
    simulated.write(setting.scratch, rows, _PART_ROWS)
    prepared = Path(str(ScoreLayout(setting.scratch / "scores").work))
    copies = {
        name: [_copy(prepared, setting.scratch / f"{number}{ending}") for number in range(_REPEATS)]
        for name, ending in (("one file", ".parquet"), ("a folder", ""))
    }
    timings = take_turns(
        {name: functools.partial(_finalize_next, runs) for name, runs in copies.items()},
        repeats=_REPEATS,
    )
    return [
        Row(
            name=f"to {name}",
            value=rows / timing.best,
            unit="rows/s",
            target=Target("value", ">=", 1e6) if name == "a folder" else None,
            note=f"{rows:,} rows in {rows // _PART_ROWS} parts, {timing.spread}",
        )
        for name, timing in timings.items()
    ]


def _copy(prepared: Path, out: Path) -> Path:
    """A run for each time: finalize removes the parts in the end, which here are links."""
    shutil.copytree(prepared, Path(str(ScoreLayout(out).work)), copy_function=_linked)
    return out


def _linked(source: str, out: str) -> None:
    if source.endswith(".parquet"):
        os.link(source, out)
    else:
        shutil.copy(source, out)


def _finalize_next(runs: list[Path]) -> None:
    Score(shards=[], out=str(runs.pop()), finalize_only=True).run()
