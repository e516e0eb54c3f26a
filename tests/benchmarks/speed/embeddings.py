"""`score` from embeddings of 512 dimensions on a local disk: pairs a second and core, and memory.

The whole command runs on two and on six files, so that the next one is read ahead in both. What
the four more cost in processor time is the speed, start-up left out; the peaks must be about the
same. With rivals from a pool of 32,768 pairs, files are a fifth as long.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from corpora import link_embeddings, rendered, unit, write_embeddings
from measure import Row, Setting, Target, take_turns
from process import Finished, run_ncclean

_DIM = 512
_FEW, _MANY = 2, 6
_POOL = 32_768


def run(setting: Setting) -> list[Row]:
    pairs = setting.choose(full=100_000, quick=8_192)
    repeats = setting.choose(full=3, quick=1)
    plain = _measured(setting.scratch / "plain", pairs, repeats)
    pooled = _measured(setting.scratch / "pooled", pairs // 5, 1, "--pool", _POOL)
    few, many = (min(run.peak_mib for run in plain[files]) for files in (_FEW, _MANY))
    return [
        _speed(f"score, {_DIM} dimensions", plain, pairs, Target("value", ">=", 15_000)),
        _speed(f"the same with a pool of {_POOL:,} pairs", pooled, pairs // 5, None),
        Row(
            name=f"peak, {pairs * _MANY:,} pairs",
            value=many,
            unit="MiB",
            ratio=many / few,
            target=Target("ratio", "<=", 1.1),
            note=f"over {pairs * _FEW:,} pairs; what is mapped from files counts",
        ),
    ]


def _measured(
    folder: Path, pairs: int, repeats: int, *options: object
) -> dict[int, list[Finished]]:
    """The runs of the command by the number of files."""
    runs = {}
    for files in (_FEW, _MANY):
        source = _corpus(folder / str(files), pairs, files)
        command = ("score", source, "--out", folder / "scores", "--overwrite", *options)
        runs[str(files)] = functools.partial(run_ncclean, *command)
    timings = take_turns(runs, repeats)
    return {int(files): timing.results for files, timing in timings.items()}


def _speed(
    name: str, runs: Mapping[int, Sequence[Finished]], pairs: int, target: Target | None
) -> Row:
    """Pairs a second by the least processor time of the further files."""
    few, many = (min(run.processor_seconds for run in runs[files]) for files in (_FEW, _MANY))
    further = pairs * (_MANY - _FEW)
    return Row(
        name=name,
        value=further / (many - few),
        unit="pairs/s and core",
        target=target,
        note=f"float16 .npy; processor time of {further:,} further pairs",
    )


def _corpus(folder: Path, pairs: int, files: int) -> Path:
    """As clip-retrieval writes it; every file is the same one under another number."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal((pairs, _DIM), dtype=np.float32)
    text = image + 2 * rng.standard_normal((pairs, _DIM), dtype=np.float32)
    columns = {
        "image_path": [f"{i:09d}" for i in range(pairs)],
        "caption": [f"a caption of some forty characters, {i:05d}" for i in range(pairs)],
    }
    write_embeddings(folder, unit(image), unit(text), columns)
    link_embeddings(folder, files)
    return folder


_SHARD = 200
_FEW_SHARDS, _MANY_SHARDS = 5, 50


def run_memory(setting: Setting) -> list[Row]:
    """Peak memory of `score` on 5 and on 50 shards of 200 pairs: it must not grow."""
    options = {"pairs": _FEW_SHARDS * _SHARD, "shard_size": _SHARD, "noise": {"ncr": 0.2}}
    few = rendered(setting.scratch / "few", **options, duplicates=0.01)
    many = setting.scratch / "many"
    many.mkdir()
    shards = sorted(few.glob("*.tar"))
    for number in range(_MANY_SHARDS):
        shutil.copy(shards[number % _FEW_SHARDS], many / f"{number:05d}.tar")
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
        Row(name=f"peak, {_FEW_SHARDS} shards", value=of_few, unit="MiB"),
        Row(
            name=f"peak, {_MANY_SHARDS} shards",
            value=of_many,
            unit="MiB",
            ratio=of_many / of_few,
            target=Target("ratio", "<=", 1.1),
            note=f"shards of {_SHARD} pairs, demo model",
        ),
    ]
