"""Peak memory of `ncclean score` on 5 and on 50 shards of 200 pairs: it must not grow."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path

from command import run_ncclean
from measure import Setting, take_turns
from results import Row, Target

from speed.corpora import rendered_shards

_PAIRS = 200
_FEW, _MANY = 5, 50


def run(setting: Setting) -> list[Row]:
    shards = _repeated(rendered_shards(setting, _FEW * _PAIRS, shard_size=_PAIRS), setting.scratch)
    timings = take_turns(
        {
            "few": functools.partial(_peak, shards[:_FEW], setting),
            "many": functools.partial(_peak, shards, setting),
        },
        repeats=setting.choose(full=2, quick=1),
    )
    few, many = min(timings["few"].results), min(timings["many"].results)
    return [
        Row(name=f"peak, {_FEW} shards", value=few, unit="MiB"),
        Row(
            name=f"peak, {_MANY} shards",
            value=many,
            unit="MiB",
            ratio=many / few,
            target=Target("ratio", "<=", 1.1),
            note=f"shards of {_PAIRS} pairs, demo model",
        ),
    ]


def _repeated(shards: Sequence[Path], scratch: Path) -> list[Path]:
    """`_MANY` shards, copies of the few that were rendered."""
    folder = scratch / "memory"
    folder.mkdir()
    copies = [folder / f"{number:05d}.tar" for number in range(_MANY)]
    for number, copy in enumerate(copies):
        shutil.copy(shards[number % len(shards)], copy)
    return copies


def _peak(shards: Sequence[Path], setting: Setting) -> float:
    """Peak of the command's resident memory in MiB.

    The shift comes from the corpus: estimating it would be a peak of its own that hides others.
    """
    out = setting.scratch / f"memory-{len(shards)}.parquet"
    arguments = [*map(str, shards), "--out", str(out), "--model", setting.demo_model]
    return run_ncclean("score", *arguments, "--overwrite", "--shift", "shuffled").peak_mib
