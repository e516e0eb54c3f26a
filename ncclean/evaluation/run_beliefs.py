"""The beliefs of a run about its training pairs: those of its model and of its selection."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.atomic import published
from ncclean.data.options import LoaderOptions
from ncclean.data.selection import SelectionReader
from ncclean.data.shards import ShardRef
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.evaluation.pair_weights import WeightReport, compare_beliefs
from ncclean.models.request import ModelRequest
from ncclean.output_mark import mark
from ncclean.progress import SILENT, Progress
from ncclean.storage.catalog import connect
from ncclean.training.block_weights import training_beliefs
from ncclean.training.finetune import Finetuning

BELIEFS = "beliefs.parquet"


def write_beliefs(
    trained: Finetuning,
    model: ModelRequest,
    *,
    shards: Sequence[ShardRef],
    scores: Sequence[str] = (),
    seed: int = 0,
    command: str = "",
    progress: Progress = SILENT,
) -> WeightReport:
    """Compute the beliefs of a run about its training pairs, write and compare them.

    `model` is the trained one; `scores` the estimator's table, `command` the one that writes
    `beliefs.parquet` into the run folder. Beliefs are those in batches like those of the training.
    """
    progress.say("encoding the training pairs")
    uids, is_noisy, beliefs = _trained(trained, model, shards, seed)
    if scores:
        beliefs |= _scored(uids, scores)
    table = pa.table(
        {
            "uid": pa.array(uids),
            "is_noisy": pa.array(is_noisy == 1, mask=is_noisy < 0),
            **{
                name: pa.array(values.astype(np.float32), mask=np.isnan(values))
                for name, values in beliefs.items()
            },
        },
        metadata={"made_by": mark(command)},
    )
    with published(UPath(trained.out) / BELIEFS) as aside:
        pq.write_table(table, str(aside), compression="zstd")
    return compare_beliefs(beliefs, is_noisy)


def _trained(
    trained: Finetuning, model: ModelRequest, shards: Sequence[ShardRef], seed: int
) -> tuple[list[str], np.ndarray, dict[str, np.ndarray]]:
    """Uids, truth and beliefs of the training pairs."""
    estimator = model.load()
    selection = trained.selection
    loader = WeightedLoader(
        shards,
        SelectionReader(selection) if selection is not None else None,
        estimator.preprocessing,
        LoaderOptions(batch_size=trained.batch_size, seed=seed, augment=False, drop_last=False),
    )
    # The posterior is that of fresh u's: the memory of a run belongs to its last steps.
    bayes = dataclasses.replace(trained.objective.bayes, moving_average=None)
    percent = trained.objective.ncu.forget_percent
    uids, truth, beliefs = training_beliefs(estimator, loader, percent, bayes, seed)
    if selection is None:
        del beliefs["selection_weight"], beliefs["selection_retain"]
    return uids, truth, beliefs


def _scored(uids: list[str], scores: Sequence[str]) -> dict[str, np.ndarray]:
    """The estimator's beliefs from the score table, NaN for pairs that are not in it."""
    with connect(scores) as connection:
        rows = connection.execute(
            "SELECT uid, osa_weight, 1 - noise_probability, ncu_confidence, disncl_clean::FLOAT "
            "FROM scores WHERE status = 'ok'"
        ).fetchall()
    by_uid = {uid: values for uid, *values in rows}
    table = np.array([by_uid.get(uid, [None] * 4) for uid in uids], dtype=float)
    names = ("osa_weight", "clean_probability", "ncu_confidence", "disncl_clean")
    return {f"scores.{name}": table[:, place] for place, name in enumerate(names)}
