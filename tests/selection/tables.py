"""A small score table of which every row is known, and a selection from one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.selection.policy import Policy
from ncclean.selection.select import select


def table(rows: int, seed: int = 0, **columns: object) -> pa.Table:
    """A score table of `rows` pairs in two shards; `columns` replace or add some."""
    rng = np.random.default_rng(seed)
    values = {
        "uid": [f"{rng.integers(1 << 62):032x}" for _ in range(rows)],
        "shard": [f"{row * 2 // max(rows, 1):05d}" for row in range(rows)],
        "key": [f"{row:04d}" for row in range(rows)],
        "row": pa.array(range(rows), pa.int32()),
        "status": ["ok"] * rows,
        "similarity": pa.array(rng.random(rows), pa.float32()),
        "noise_probability": pa.array(rng.random(rows), pa.float32()),
        "osa_weight": pa.array(np.maximum(rng.random(rows) - 0.5, 0), pa.float32()),
        "ncu_split": ["forget" if row % 10 == 0 else "retain" for row in range(rows)],
        "disncl_clean": [row % 2 == 0 for row in range(rows)],
    }
    return pa.table({**values, **columns})


def run(folder: Path, scores: pa.Table, **options: object):
    """The summary and the keys selected, in the order written."""
    source, out = folder / "scores.parquet", folder / "selection.parquet"
    pq.write_table(scores, source, row_group_size=7)
    beside = {name: options.pop(name) for name in ("dedup", "join") if name in options}
    summary = select([str(source)], UPath(out), Policy(**options), **beside)
    return summary, pq.read_table(out)
