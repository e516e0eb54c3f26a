"""Simulated runs: parts of many pairs, records of many shards."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import torch
from process import resident_bytes
from upath import UPath

import ncclean
from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.data.shards import ShardRef
from ncclean.scoring.mixture import loss_histogram, pair_losses
from ncclean.scoring.null import BINS, Histogram
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.parts import write_part
from ncclean.storage.score_run import RunIdentity, ScoreRun
from ncclean.storage.shard_records import ShardRecord

PART_ROWS = 100_000
NOISE = 0.2


def _opened(layout: ScoreLayout, shards: list[ShardRef]) -> ScoreRun:
    model = {"model": "simulated", "scale": "100.0"}
    identity = RunIdentity(model, ScoreOptions().result_options(), shards, ncclean.__version__)
    return ScoreRun.open(layout, identity, overwrite=True)


def write(folder: Path, rows: int, part_rows: int = PART_ROWS) -> None:
    """Parts and record of a run that has scored `rows` pairs, `part_rows` to a shard."""
    layout = ScoreLayout(UPath(folder / "scores"))
    shards = [ShardRef(f"{n:06d}", f"{n:06d}.tar", 1, "") for n in range(rows // part_rows)]
    run = _opened(layout, shards)
    run.record_noise_shift(0.0)
    rng = np.random.default_rng(0)
    mismatched = Histogram.of(torch.from_numpy(rng.normal(0.1, 0.05, 1_000_000)))
    words = ["red", "blue", "small", "old", "photo", "of", "a", "house", "dog", "boat", "on", "the"]
    captions = pa.table({
        "i": list(range(5000)), "text": [" ".join(rng.choice(words, 10)) for _ in range(5000)]
    })  # fmt: skip
    connection = duckdb.connect()
    connection.register("captions", captions)
    for number, shard in enumerate(shards):
        # Normal numbers by Box and Muller: DuckDB has uniform ones alone.
        table = connection.execute(
            f"""
            WITH drawn AS (
              SELECT range AS r, md5(CAST(range + {number * part_rows} AS VARCHAR)) AS uid,
                random() < {NOISE} AS noisy, 1 - random() AS u, random() AS v,
                random() AS a, random() AS b
              FROM range({part_rows}))
            SELECT uid, '{shard.name}' AS shard, lpad(CAST(r AS VARCHAR), 9, '0') AS key, r AS row,
              c.text AS text, 'https://images.example.org/' || uid || '.jpg' AS url,
              200 + 1800 * a AS width, 200 + 1800 * b AS height, 'ok' AS status,
              CASE WHEN noisy THEN 0.1 ELSE 0.3 END + 0.05 * sqrt(-2 * ln(u)) * cos(2 * pi() * v)
                AS similarity, a AS ncu_confidence,
              CASE WHEN b < 0.1 THEN 'forget' ELSE 'retain' END AS ncu_split,
              a < 0.5 AS disncl_clean,
              -(CASE WHEN noisy THEN 0.09 ELSE 0.02 END) * (0.5 + b) AS neg_clip_loss,
              CAST(100 * a * b AS INT) AS i2t_rank, CAST(100 * u * b AS INT) AS t2i_rank,
              r // 2048 AS block, noisy AS is_noisy
            FROM drawn JOIN captions AS c ON c.i = r % 5000 ORDER BY r
            """
        ).to_arrow_table()
        columns = [
            table.column(field.name).cast(field.type, safe=False)
            if field.name in table.column_names
            else pa.nulls(len(table), field.type)
            for field in schema.SCORES
        ]
        part = pa.table(columns, schema=schema.SCORES)
        similarity, losses = (
            torch.from_numpy(part.column(name).to_numpy().copy())
            for name in ("similarity", "neg_clip_loss")
        )
        stats = ShardStats(len(part), {"ok": len(part)}, seconds=1.0, bytes=part.nbytes)
        counted = Distributions(
            Histogram.of(similarity), mismatched, loss_histogram(pair_losses(losses, 100.0))
        )
        record = ShardRecord(shard.name, shard.size, shard.version, stats, counted)
        write_part(layout.part(shard), part, record)
    run.close()


def records(folder: Path, shards: int) -> dict[str, float]:
    """The records of many shards: written, and read again as a resumed run does."""
    layout = ScoreLayout(UPath(folder / "large"))
    names = [ShardRef(f"{n:06d}", f"s3://bucket/corpus/{n:06d}.tar", 1, "e" * 32)
             for n in range(shards)]  # fmt: skip
    before = resident_bytes()
    run = _opened(layout, names)
    counts = np.zeros(BINS, dtype=np.int64)
    counts[2000:2600] = np.random.default_rng(0).integers(0, 100, 600)
    distributions = Distributions(*[Histogram(counts, 1) for _ in range(3)])
    stats = ShardStats(10_000, {"ok": 9_950, "image_corrupt": 50}, 9.0)
    run.write_list(
        (one.name, ShardRecord(one.name, one.size, one.version, stats, distributions).to_json())
        for one in names
    )
    run.close()
    begin = time.perf_counter()
    again = ScoreRun.load(layout)
    seconds = time.perf_counter() - begin
    assert again is not None
    assert len(again.done) == shards
    return {
        "list_mb": layout.shard_list.stat().st_size / 1e6,
        "load_seconds": seconds,
        "memory_mb_for_two_runs": (resident_bytes() - before) / 1e6,
    }
