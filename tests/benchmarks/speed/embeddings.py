"""`score` from embeddings of 512 dimensions on a local disk: pairs a second and core, and memory.

The whole command runs on two and on six files, so that the next one is read ahead in both. What
the four more cost in processor time is the speed, start-up left out; the peaks must be about the
same. With rivals from a pool of 32,768 pairs, files are a fifth as long.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from corpora import link_embeddings, unit, write_embeddings
from measure import Setting, take_turns
from process import Finished, run_ncclean
from results import Row, Target

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
