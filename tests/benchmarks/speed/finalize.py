"""Rows per second of finalize, to one file and to a folder, on simulated parts.

The parts hold what a web corpus would: distinct uids, captions, urls, every score column. Timed
is `ncclean score --finalize-only`'s work, from the parts to the final files.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from measure import Setting, take_turns
from ncclean_pipelines.score import Score
from results import Row, Target
from upath import UPath

import ncclean
from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.data.shards import ShardRef
from ncclean.scoring.mixture import loss_histogram, pair_losses
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.parts import write_part
from ncclean.storage.score_run import RunIdentity, ScoreRun
from ncclean.storage.shard_records import ShardRecord
from speed.corpora import usual_captions

_PART_ROWS = 10_000
_DISTINCT_PARTS = 10  # as many as one row group joins: no repetition within reach of compression
_NOISE = 0.2
_REPEATS = 3
_BLOCK = 2048


def run(setting: Setting) -> list[Row]:
    parts = setting.choose(full=200, quick=20)
    prepared = Path(str(ScoreLayout(UPath(setting.scratch / "run")).work))
    prepared.mkdir(parents=True)
    _write_run(prepared, parts)
    rows = parts * _PART_ROWS
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
            note=f"{rows:,} rows in {parts} parts, {timing.spread}",
        )
        for name, timing in timings.items()
    ]


def _copy(prepared: Path, out: Path) -> Path:
    """A run for each time: finalize removes the parts in the end, which here are links."""
    layout = ScoreLayout(out)
    layout.work.mkdir(parents=True)
    for part in prepared.glob("*.parquet"):
        os.link(part, layout.work / part.name)
    shutil.copy(prepared / "run.json", layout.work)
    shutil.copytree(prepared / "run.entries", layout.work / "run.entries")
    return out


def _finalize_next(runs: list[Path]) -> None:
    Score(shards=[], out=str(runs.pop()), finalize_only=True).run()


def _write_run(folder: Path, parts: int) -> None:
    """The record and the parts of a run that has scored all its shards."""
    captions = np.array(usual_captions(_PART_ROWS), dtype=object)
    tables = [_simulated_table(captions, seed) for seed in range(min(parts, _DISTINCT_PARTS))]
    shards = [ShardRef(f"{number:05d}", f"{number:05d}.tar", 1, "") for number in range(parts)]
    identity = RunIdentity(
        model={"model": "simulated", "scale": "100.0"},
        options=ScoreOptions().result_options(),
        shards=shards,
        version=ncclean.__version__,
    )
    run = ScoreRun.open(ScoreLayout(UPath(folder.parent)), identity)
    try:
        run.record_noise_shift(0.0)
        for number, shard in enumerate(shards):
            table = tables[number % len(tables)]
            names = pa.array([shard.name] * len(table), pa.string())
            table = table.set_column(schema.SCORES.names.index("shard"), "shard", names)
            counts = {"ok": len(table)}
            stats = ShardStats(len(table), counts, seconds=1.0, bytes=table.nbytes)
            distributions = _distributions(table, seed=number)
            record = ShardRecord(shard.name, shard.size, shard.version, stats, distributions)
            write_part(folder / shard.part_name, table, record)
    finally:
        run.close()


def _simulated_table(captions: np.ndarray, seed: int) -> pa.Table:
    """One part as `score` writes it: every pair scored, the calibrated columns null."""
    rng = np.random.default_rng(seed)
    n = _PART_ROWS
    noisy = rng.random(n) < _NOISE
    uids = [rng.bytes(16).hex() for _ in range(n)]
    known: dict[str, object] = {
        "uid": uids,
        "shard": [""] * n,
        "key": [f"{row:09d}" for row in range(n)],
        "row": np.arange(n),
        "text": rng.permutation(captions),
        "url": [f"https://images.example.org/{uid[:2]}/{uid}/{uid[4:12]}.jpg" for uid in uids],
        "width": rng.integers(200, 2000, n),
        "height": rng.integers(200, 2000, n),
        "status": ["ok"] * n,
        "similarity": rng.normal(np.where(noisy, 0.1, 0.3), 0.05),
        "ncu_confidence": rng.random(n),
        "ncu_split": np.where(rng.random(n) < 0.1, "forget", "retain"),
        "disncl_clean": rng.random(n) < 0.5,
        "neg_clip_loss": -rng.gamma(2, np.where(noisy, 0.04, 0.01)),
        "i2t_rank": rng.geometric(0.05, n) - 1,
        "t2i_rank": rng.geometric(0.05, n) - 1,
        "block": rng.integers(0, n // _BLOCK, n),
        "is_noisy": noisy,
    }
    columns = [
        pa.array(known[field.name], field.type) if field.name in known else pa.nulls(n, field.type)
        for field in schema.SCORES
    ]
    return pa.table(columns, schema=schema.SCORES)


def _distributions(table: pa.Table, seed: int) -> Distributions:
    rng = np.random.default_rng(seed)
    similarity = torch.from_numpy(table.column("similarity").to_numpy().copy())
    mismatched = torch.from_numpy(rng.normal(0.1, 0.05, _BLOCK * 16))
    scores = torch.from_numpy(table.column("neg_clip_loss").to_numpy().copy())
    losses = loss_histogram(pair_losses(scores, 100.0))
    return Distributions(Histogram.of(similarity), Histogram.of(mismatched), losses)
