"""`ncclean score` without what it does once: the model is loaded and its shift is known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import torch

import ncclean
from ncclean.base.config import ScoreOptions
from ncclean.data.counting import estimate_samples
from ncclean.data.decode import ImageDecoder
from ncclean.data.decoding import decoded_shard
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.engine import PartWriter, ShardOutcome, ShardTask
from ncclean.execution.image_encoder import ImageEncoder
from ncclean.execution.local_engine import LocalEngine
from ncclean.models.estimator import Estimator
from ncclean.storage.calibration import calibrate
from ncclean.storage.finalize import finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.score_run import RunIdentity, ScoreRun


def score_shards(
    estimator: Estimator, shards: Sequence[Path], out: Path, *, batch_size: int
) -> Path:
    """All that `ncclean score` does per shard and sample, to the final table at `out`.

    Reads, decodes, embeds, takes block statistics, commits parts and finalizes. Raises
    `RuntimeError` if a shard cannot be scored.
    """
    layout = ScoreLayout(out)
    options = ScoreOptions(batch_size=batch_size, decode_threads=os.cpu_count() or 1)
    references = resolve_shards([str(shard) for shard in shards])
    identity = RunIdentity(
        model={
            "model": estimator.identity.model,
            "precision": estimator.precision,
            "scale": repr(estimator.scale),
        },
        options=options.result_options(),
        shards=references,
        version=ncclean.__version__,
    )
    run = ScoreRun.open(layout, identity, overwrite=True)

    def commit(shard: ShardRef, outcome: ShardOutcome) -> None:
        if outcome.stats.error is not None or outcome.stats.ok != outcome.stats.rows:
            raise RuntimeError(f"{shard.url}: {outcome.stats.error or outcome.stats.statuses}")
        run.commit(shard, outcome.stats, outcome.distributions)

    try:
        estimate_samples(references)  # for the progress bar
        tasks = [ShardTask(number, shard) for number, shard in enumerate(references)]
        writer = PartWriter(str(layout.work), None, 1)
        columns = ColumnSources(options)
        encoder = ImageEncoder(estimator, options, columns)
        LocalEngine(encoder, options, columns).run(tasks, writer, commit)
        run.record_noise_shift(0.0)
        finalize(run, calibrate(run, "noise"))
    finally:
        run.close()
    return out


def cosines_of(out: Path) -> dict[str, float]:
    """The cosine of every pair of a score file by its key."""
    table = pq.read_table(out, columns=["key", "similarity"]).to_pydict()
    return dict(zip(table["key"], table["similarity"], strict=True))


def cosines_of_equal_pixels(estimator: Estimator, shard: Path, batch_size: int) -> dict[str, float]:
    """The cosines of a shard's pairs by key, decoded with Pillow as open_clip does."""
    decoder = ImageDecoder(estimator.preprocessing, fast=False)
    (reference,) = resolve_shards([str(shard)])
    samples = list(decoded_shard(reference, decoder, 1))
    pixels = torch.stack([one.pixels for one in samples if one.pixels is not None])
    image = torch.cat([estimator.encode_image(batch) for batch in pixels.split(batch_size)])
    text = estimator.encode_text([one.sample.caption or "" for one in samples], batch_size)
    keys = [one.sample.key for one in samples]
    return dict(zip(keys, (image * text).sum(dim=1).tolist(), strict=True))
