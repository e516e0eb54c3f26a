"""Scoring runs without a model: rows that depend on the shard's name alone."""

from __future__ import annotations

import contextlib
import os
import pickle
import zlib
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ncclean.base import schema
from ncclean.data.shards import ShardRef
from ncclean.scoring.calibration import Calibration
from ncclean.scoring.mixture import loss_histogram, pair_losses
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.calibration import calibrate
from ncclean.storage.finalize import finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.parts import write_embeddings, write_part
from ncclean.storage.score_run import RunIdentity, ScoreRun
from ncclean.storage.shard_records import ShardRecord

SCALE = 20.0
IDENTITY = RunIdentity(
    model={"model": "demo", "scale": str(SCALE)},
    options={"seed": 0, "caption_key": None, "embeddings": None},
    shards=[],
    version="9",
)
_FIT, _FITTED = Calibration.fit, {}
EMPTY = "empty"  # a shard of this name has no rows


def refs(names, version="v1"):
    return [ShardRef(name, f"/corpus/{name}.tar", 10, version) for name in names]


def result(name, share=1.0):
    """The rows of a shard, or of its beginning, its statistics and distributions."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    count = 0 if name == EMPTY else int(rng.integers(5, 30) * share)
    cosines = rng.normal(0.3, 0.1, 30)[:count].astype(np.float32)
    losses = -rng.random(30)[:count].astype(np.float32) / SCALE
    mismatched = Histogram.of(torch.from_numpy(rng.normal(0.0, 0.1, 200)))
    columns = {
        "uid": [f"{name}-{row}" for row in range(count)], "shard": [name] * count,
        "key": [str(row) for row in range(count)], "row": list(range(count)),
        "status": ["ok"] * count, "similarity": cosines, "neg_clip_loss": losses,
    }  # fmt: skip
    table = pa.table(
        [pa.array(columns.get(field.name, [None] * count), field.type) for field in schema.SCORES],
        schema=schema.SCORES,
    )
    matched = Histogram.of(torch.from_numpy(cosines))
    of_losses = loss_histogram(pair_losses(torch.from_numpy(losses), SCALE))
    counts, error = {"ok": count} if count else {}, "cut" if share < 1 else None
    stats = ShardStats(count, counts, 1.0, error, bytes=256 * count)
    return table, stats, Distributions(matched, mismatched, of_losses)


def identity(names, **options):
    shards = [ref if isinstance(ref, ShardRef) else refs([ref])[0] for ref in names]
    return RunIdentity(IDENTITY.model, {**IDENTITY.options, **options}, shards, "9")


def score(out, names, *, broken=(), shift=0.2, embeddings=None, until_finalize=False, **flags):
    """What `ncclean score` does, but for the model; `broken` shards break off in their middle."""
    layout = ScoreLayout(out)
    run = ScoreRun.open(layout, identity(names, embeddings=embeddings), **flags)
    with contextlib.closing(run):
        for shard in run.pending():
            table, stats, distributions = result(shard.name, 0.5 if shard.name in broken else 1.0)
            if embeddings is not None:
                number = f"{run.numbers[shard.name]:0{run.digits}d}"
                vectors = np.full((len(table), 2), zlib.crc32(shard.name.encode()) % 97, np.float16)
                write_embeddings(type(out)(embeddings), number, vectors, vectors, table)
            commit(run, shard, table, stats, distributions)
        if not until_finalize:
            finalize(run, calibrate(run, shift))
    return run


def fitted_once(distributions, **options):
    """In place of `Calibration.fit`: equal distributions, which come again and again, take once."""
    key = pickle.dumps((distributions, options))
    if key not in _FITTED:
        _FITTED[key] = _FIT(distributions, **options)
    return _FITTED[key]


def commit(run, shard, table, stats, distributions):
    """What a worker does with the result of a shard, and the run after it."""
    record = ShardRecord(shard.name, shard.size, shard.version, stats, distributions)
    write_part(run.layout.part(shard), table, record)
    run.commit(shard, stats, distributions)


def read(out):
    """The rows and the metadata of a table, but for what is in which file."""
    tables = []
    for path in [out] if out.suffix == ".parquet" else sorted(out.glob("*.parquet"), key=str):
        with path.open("rb") as file:
            table = pq.read_table(file)
        metadata = dict(table.schema.metadata)
        for name in (b"rows_by_shard", b"shard_fingerprints"):  # of the file's shards
            del metadata[name]
        tables.append(table.replace_schema_metadata(metadata))
    assert all(table.schema.metadata == tables[0].schema.metadata for table in tables)
    return pa.concat_tables(tables)


def assert_same_table(found, expected):
    """Row for row in the same order, column for column, and the metadata."""
    assert found.schema.equals(expected.schema, check_metadata=True)
    for name in expected.schema.names:
        assert found.column(name).to_pylist() == expected.column(name).to_pylist(), name


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@contextlib.contextmanager
def killed_at(step):
    """Die before change number `step` of a file: what is written, renamed or removed.

    From then on nothing changes any file any more, whoever tries. Yields the changes so far.
    """
    changes = []

    def dying(work):
        def change(*arguments, **options):
            if len(changes) >= step:
                raise Killed
            changes.append((work.__name__, arguments[:1]))
            return work(*arguments, **options)

        return change

    with (
        mock.patch.object(os, "replace", dying(os.replace)),
        mock.patch.object(os, "unlink", dying(os.unlink)),
        mock.patch.object(os, "write", dying(os.write)),
    ):
        yield changes
