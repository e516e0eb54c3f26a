"""`score` from embeddings of 512 dimensions on a local disk: pairs a second and core, and memory.

The whole command runs on two and on six files, so that the next one is read ahead in both. What
the four more cost in processor time is the speed, start-up left out; the peaks must be about the
same. With rivals from a pool of 32,768 pairs, files are a fifth as long.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import CommandRun, run_ncclean
from measure import Setting, take_turns
from results import Row, Target

_DIM = 512
_FEW, _MANY = 2, 6
_POOL = 32_768


def run(setting: Setting) -> list[Row]:
    pairs = setting.choose(full=100_000, quick=8_192)
    folders = {files: _corpus(setting.scratch, pairs, files) for files in (_FEW, _MANY)}
    timings = take_turns(
        {
            str(files): functools.partial(_score, folder, setting.scratch)
            for files, folder in folders.items()
        },
        repeats=setting.choose(full=3, quick=1),
    )
    few, many = timings[str(_FEW)].results, timings[str(_MANY)].results
    seconds = _least(many) - _least(few)
    pooled = {
        files: _score(
            _corpus(setting.scratch / "pooled", pairs // 5, files), setting.scratch, pool=_POOL
        )
        for files in (_FEW, _MANY)
    }
    more_pooled = pairs // 5 * (_MANY - _FEW)
    pooled_seconds = _least([pooled[_MANY]]) - _least([pooled[_FEW]])
    peaks = [min(run.peak_mib for run in runs) for runs in (few, many)]
    more = pairs * (_MANY - _FEW)
    return [
        Row(
            name=f"score, {_DIM} dimensions",
            value=more / seconds,
            unit="pairs/s and core",
            target=Target("value", ">=", 15_000),
            note=f"float16 .npy; processor time of {more:,} further pairs",
        ),
        Row(
            name=f"the same with a pool of {_POOL:,} pairs",
            value=more_pooled / pooled_seconds,
            unit="pairs/s and core",
            note=f"float16 .npy; processor time of {more_pooled:,} further pairs",
        ),
        Row(
            name=f"peak, {pairs * _MANY:,} pairs",
            value=peaks[1],
            unit="MiB",
            ratio=peaks[1] / peaks[0],
            target=Target("ratio", "<=", 1.1),
            note=f"over {pairs * _FEW:,} pairs; what is mapped from files counts",
        ),
    ]


def _score(folder: Path, scratch: Path, pool: int | None = None) -> CommandRun:
    out = scratch / "embedding-scores"
    more = ("--pool", str(pool)) if pool else ()
    return run_ncclean("score", str(folder), "--out", str(out), "--overwrite", *more)


def _least(runs: Sequence[CommandRun]) -> float:
    """The least processor time of some runs."""
    return min(run.processor_seconds for run in runs)


def _corpus(scratch: Path, pairs: int, files: int) -> Path:
    """As clip-retrieval writes it; every file is the same one under another number."""
    folder = scratch / f"embeddings-{files}"
    rng = np.random.default_rng(0)
    image = rng.standard_normal((pairs, _DIM), dtype=np.float32)
    text = image + 2 * rng.standard_normal((pairs, _DIM), dtype=np.float32)
    for kind, vectors in (("img_emb", image), ("text_emb", text)):
        (folder / kind).mkdir(parents=True)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.save(folder / kind / f"{kind}_0.npy", vectors.astype(np.float16))
    (folder / "metadata").mkdir()
    columns = {"image_path": [f"{i:09d}" for i in range(pairs)]}
    columns["caption"] = [f"a caption of some forty characters, {i:05d}" for i in range(pairs)]
    pq.write_table(pa.table(columns), folder / "metadata" / "metadata_0.parquet")
    for number in range(1, files):
        for kind, ending in (("img_emb", "npy"), ("text_emb", "npy"), ("metadata", "parquet")):
            first = folder / kind / f"{kind}_0.{ending}"
            first.with_name(f"{kind}_{number}.{ending}").hardlink_to(first)
    return folder
