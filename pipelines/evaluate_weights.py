"""The weight analysis: what a run's model and its selection say of each training pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from upath import UPath

from ncclean.atomic import published
from ncclean.data.selection import SelectionReader
from ncclean.data.shards import resolve_shards
from ncclean.data.weighted_loader import LoaderOptions, WeightedLoader
from ncclean.errors import InputError
from ncclean.evaluation.beliefs import WeightReport, compare_beliefs
from ncclean.models.estimator import Estimator
from ncclean.storage.catalog import connect
from ncclean.training.block_weights import block_beliefs
from ncclean.training.objectives.bayes import BayesOptions

from .finetune import PARAMS

BELIEFS = "beliefs.parquet"


@dataclass(frozen=True, kw_only=True)
class WeightsRequest:
    """A run; `scores` is the score table it was selected from, for the estimator's beliefs."""

    run: str
    scores: Sequence[str] = ()
    shards: Sequence[str] = ()
    precision: str = "auto"
    device: str = "auto"
    seed: int = 0


def evaluate_weights(request: WeightsRequest) -> WeightReport:
    """Compute the beliefs, write them to `RUN/beliefs.parquet`, and compare them.

    Raises `InputError` if the folder holds no finished run.
    """
    folder = Path(request.run.removeprefix("local-dir:"))
    if not (folder / PARAMS).is_file():
        raise InputError(f"{folder} holds no {PARAMS}: it is no run of finetune")
    params: dict[str, Any] = yaml.safe_load((folder / PARAMS).read_text())
    uids, is_noisy, beliefs = _trained(request, folder, params)
    if request.scores:
        beliefs |= _scored(uids, request.scores)
    table = pa.table(
        {
            "uid": pa.array(uids),
            "is_noisy": pa.array(is_noisy == 1, mask=is_noisy < 0),
            **{
                name: pa.array(values.astype(np.float32), mask=np.isnan(values))
                for name, values in beliefs.items()
            },
        }
    )
    with published(UPath(folder / BELIEFS)) as aside:
        pq.write_table(table, str(aside), compression="zstd")
    return compare_beliefs(beliefs, is_noisy)


def _trained(
    request: WeightsRequest, folder: Path, params: dict[str, Any]
) -> tuple[list[str], np.ndarray, dict[str, np.ndarray]]:
    """Uids, truth and beliefs of the training pairs, in batches like those it was trained in."""
    estimator = Estimator.load(
        f"local-dir:{folder}",
        None,
        precision=request.precision,
        device=request.device,
        space="auto",
    )
    selection = params["selection"]
    loader = WeightedLoader(
        resolve_shards(request.shards or params["shards"]),
        SelectionReader(selection) if selection is not None else None,
        estimator.preprocessing,
        LoaderOptions(
            batch_size=params["batch_size"], seed=request.seed, augment=False, drop_last=False
        ),
    )
    objective = params.get("objective", {})
    named = {field.name for field in dataclasses.fields(BayesOptions)}
    bayes = BayesOptions(**{k: v for k, v in objective.get("bayes", {}).items() if k in named})
    # The posterior is that of fresh u's: the memory of a run belongs to its last steps.
    bayes = dataclasses.replace(bayes, moving_average=None)
    percent = objective.get("ncu", {}).get("forget_percent", 10.0)
    uids: list[str] = []
    columns: dict[str, list[np.ndarray]] = {}
    for number, batch in enumerate(loader.epoch(0)):
        blocks = block_beliefs(
            estimator.encode_image(batch.pixels),
            estimator.encode_text(batch.captions),
            estimator.scale,
            forget_percent=percent,
            bayes=bayes,
            seed=request.seed + number,
        )
        uids += batch.uids
        unknown = np.full(len(batch.uids), -1.0)
        truth = unknown if batch.is_noisy is None else batch.is_noisy.numpy()
        given = {"is_noisy": truth, "selection_weight": batch.weights.numpy(),
                 "selection_retain": (~batch.is_forget).float().numpy()}  # fmt: skip
        for name, values in (given | blocks).items():
            columns.setdefault(name, []).append(values)
    joined = {name: np.concatenate(values).astype(float) for name, values in columns.items()}
    # Some are shown twice in place of samples that cannot be read.
    first = sorted({uid: place for place, uid in reversed(list(enumerate(uids)))}.values())
    kept = {name: values[first] for name, values in joined.items()}
    if selection is None:
        del kept["selection_weight"], kept["selection_retain"]
    return [uids[place] for place in first], kept.pop("is_noisy"), kept


def _scored(uids: list[str], scores: Sequence[str]) -> dict[str, np.ndarray]:
    """The estimator's beliefs from the score table, NaN for pairs that are not in it."""
    with connect(scores) as connection:
        rows = connection.execute(
            "SELECT uid, osa_weight, 1 - noise_probability, ncu_confidence, disncl_clean::FLOAT "
            "FROM scores WHERE status = 'ok'"
        ).fetchall()
    known = {uid: values for uid, *values in rows}
    missing = [None] * 4
    found = np.array([known.get(uid, missing) for uid in uids], dtype=float)
    names = ("osa_weight", "clean_probability", "ncu_confidence", "disncl_clean")
    return {f"scores.{name}": found[:, place] for place, name in enumerate(names)}
