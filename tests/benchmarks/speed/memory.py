"""Peak memory of `ncclean score` on 5 and on 50 shards of 200 pairs: it must not grow."""

from __future__ import annotations

import functools
import shutil

from corpora import rendered
from measure import Setting, take_turns
from process import run_ncclean
from results import Row, Target

_PAIRS = 200
_FEW, _MANY = 5, 50


def run(setting: Setting) -> list[Row]:
    options = {"pairs": _FEW * _PAIRS, "shard_size": _PAIRS, "noise": {"ncr": 0.2}}
    few = rendered(setting.scratch / "few", **options, duplicates=0.01)
    many = setting.scratch / "many"
    many.mkdir()
    shards = sorted(few.glob("*.tar"))
    for number in range(_MANY):
        shutil.copy(shards[number % _FEW], many / f"{number:05d}.tar")
    # The shift comes from the corpus: estimating it would be a peak of its own that hides others.
    words = ("--model", setting.demo_model, "--overwrite", "--shift", "shuffled")
    out = setting.scratch / "memory.parquet"
    timings = take_turns(
        {
            folder.name: functools.partial(run_ncclean, "score", folder, "--out", out, *words)
            for folder in (few, many)
        },
        repeats=setting.choose(full=2, quick=1),
    )
    of_few, of_many = (
        min(run.peak_mib for run in timings[name].results) for name in ("few", "many")
    )
    return [
        Row(name=f"peak, {_FEW} shards", value=of_few, unit="MiB"),
        Row(
            name=f"peak, {_MANY} shards",
            value=of_many,
            unit="MiB",
            ratio=of_many / of_few,
            target=Target("ratio", "<=", 1.1),
            note=f"shards of {_PAIRS} pairs, demo model",
        ),
    ]
