"""Scoring commands for tests, and the tables that they write."""

import pyarrow.parquet as pq
from ncclean_pipelines.score import Score

from ncclean.base.config import ScoreOptions


def command(shards, out, **options):
    fields = {
        name: options.pop(name)
        for name in (
            "shift",
            "overwrite",
            "precision",
            "model",
            "finalize_only",
            "dry_run",
            "drop_missing",
            "engine",
            "cluster",
        )
        if name in options
    }
    defaults = {"model": "demo", "precision": "fp32", "shift": "shuffled"}
    return Score(
        shards=[str(shards)] if not isinstance(shards, list) else shards,
        out=str(out),
        options=ScoreOptions(**options),
        **{**defaults, **fields},
    )


def read(path):
    """The table sorted as written, from a file or a folder: by shard, row and caption."""
    order = ("shard", "row", "caption_number")
    return pq.read_table(path).sort_by([(name, "ascending") for name in order])


def assert_same_rows(found, expected):
    assert found.schema.names == expected.schema.names
    for name in expected.schema.names:
        a, b = found.column(name).to_pandas(), expected.column(name).to_pandas()
        if str(expected.schema.field(name).type) == "float":
            assert (a.isna() == b.isna()).all(), name
            tolerance = 1e-6 if name == "similarity" else 1e-5
            assert (a - b).abs().max() <= tolerance or a.isna().all(), name
        else:
            assert a.equals(b), name
