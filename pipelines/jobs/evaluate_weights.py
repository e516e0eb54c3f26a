"""What a run's model and its selection say of each training pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from upath import UPath

from ncclean.atomic import published
from ncclean.data.options import LoaderOptions
from ncclean.data.selection import SelectionReader
from ncclean.data.shards import resolve_shards
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.errors import InputError
from ncclean.evaluation.pair_weights import WeightReport, compare_beliefs
from ncclean.models.estimator import Estimator
from ncclean.output_mark import check_free, mark
from ncclean.storage.catalog import connect
from ncclean.text_files import load_yaml, read_text
from ncclean.training.block_weights import training_beliefs
from ncclean.url_secrets import HIDDEN

from ..command import build
from ..evaluate_weights import EvaluateWeights
from ..finetune import Finetune
from ..progress import Progress
from .finetune import PARAMS

BELIEFS = "beliefs.parquet"


def _params(path: Path) -> dict[str, Any]:
    try:
        params = load_yaml(read_text(path), path)
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML") from error
    if not isinstance(params, dict):
        raise InputError(f"{path} does not hold the options of a run of `ncclean finetune`")
    params.pop("versions", None)
    return params


def compare(command: EvaluateWeights, progress: Progress) -> WeightReport:
    """Compute the beliefs, write them to `RUN/beliefs.parquet`, and compare them.

    Raises `InputError` if the folder holds no finished run.
    """
    folder = Path(command.run_folder.removeprefix("local-dir:"))
    if not (folder / PARAMS).is_file():
        raise InputError(f"{folder} has no {PARAMS}: name the run folder of `ncclean finetune`")
    check_free([str(folder / BELIEFS)], command.name, command.overwrite)
    params = _params(folder / PARAMS)
    trained = build(Finetune, {**params, "out": str(folder)})
    if command.shards is None and any(HIDDEN in shard for shard in trained.shards):
        raise InputError(
            f"{folder} does not keep the passwords of its --shards: name them again with --shards"
        )
    progress.say("encoding the training pairs")
    uids, is_noisy, beliefs = _trained(command, trained)
    if command.scores:
        beliefs |= _scored(uids, command.scores)
    table = pa.table(
        {
            "uid": pa.array(uids),
            "is_noisy": pa.array(is_noisy == 1, mask=is_noisy < 0),
            **{
                name: pa.array(values.astype(np.float32), mask=np.isnan(values))
                for name, values in beliefs.items()
            },
        },
        metadata={"made_by": mark(command.name)},
    )
    with published(UPath(folder / BELIEFS)) as aside:
        pq.write_table(table, str(aside), compression="zstd")
    return compare_beliefs(beliefs, is_noisy)


def _trained(
    command: EvaluateWeights, trained: Finetune
) -> tuple[list[str], np.ndarray, dict[str, np.ndarray]]:
    """Uids, truth and beliefs of the training pairs, in batches like those it was trained in."""
    estimator = Estimator.load(
        f"local-dir:{trained.out}",
        None,
        precision=command.precision,
        device=command.device,
        space="auto",
    )
    selection = trained.selection
    loader = WeightedLoader(
        resolve_shards(command.shards or trained.shards),
        SelectionReader(selection) if selection is not None else None,
        estimator.preprocessing,
        LoaderOptions(
            batch_size=trained.batch_size, seed=command.seed, augment=False, drop_last=False
        ),
    )
    # The posterior is that of fresh u's: the memory of a run belongs to its last steps.
    bayes = dataclasses.replace(trained.objective.bayes, moving_average=None)
    percent = trained.objective.ncu.forget_percent
    uids, truth, beliefs = training_beliefs(estimator, loader, percent, bayes, command.seed)
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
