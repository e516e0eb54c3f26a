"""What the objectives do to a model that has learnt people's errors; see `cifar10n.py`.

The patient is trained on the pairs with the `worse` labels, from random weights. Each arm goes on
from it with the same number of steps, and all are measured on photographs that no model has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow.parquet as pq
import torch
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from noise.weak_estimators import CLASS_NAMES, TEMPLATES

from cifar10n.corpora import Row, reader
from cifar10n.figures import audited_threshold, image_embeddings
from ncclean.base.config import ScoreOptions
from ncclean.data.decode import DecodedImage, ImageDecoder
from ncclean.data.options import LoaderOptions
from ncclean.evaluation.ranking import classifier_weights
from ncclean.models.estimator import Estimator
from ncclean.selection.policy import Policy
from ncclean.training.objectives.options import Method, NcuOptions, ObjectiveOptions
from ncclean.training.options import TrainOptions

LABEL = "worse"
BASELINE = "clip on all"
_ANSWERS = 300
_BATCH, _RATE = 256, 2e-4
_CLASSES = list(CLASS_NAMES)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An objective on all pairs, or on those of a policy over the score table of a judge.

    The judge is the estimator or the patient `itself`; `forget` is a percentage, for `ncu`.
    """

    name: str
    method: Method = "clip"
    policy: Policy | Literal["audited"] | None = None
    judge: Literal["estimator", "itself"] = "estimator"
    forget: float | None = None


_SELECTED = Policy(method="noise-probability")
_WEIGHTED = Policy(weights="osa_weight")
# 40 is the share of wrong labels.
ARMS = (
    Arm(name=BASELINE),
    Arm(name="clip, selected", policy=_SELECTED),
    Arm(name="clip, selected by itself", policy=_SELECTED, judge="itself"),
    Arm(name="osa", method="osa", policy=_WEIGHTED),
    Arm(name="ncu, forget 40 %", method="ncu", forget=40.0),
    Arm(name="rince", method="rince"),
    Arm(name="bayes", method="bayes"),
    Arm(name="ncu, nothing to forget", method="ncu", forget=0.0),
    Arm(name=f"clip, selected after {_ANSWERS} answers", policy="audited"),
    Arm(name="oracle", policy=Policy(where="NOT is_noisy")),
)


class HeldOut:
    """Zero-shot classification of photographs by the templates of the captions."""

    def __init__(self, folder: Path, rows: list[Row]) -> None:
        read = reader(folder)
        self._bytes = [read(row["file"]) for row in rows]
        self._labels = torch.tensor([_CLASSES.index(row["clean"]) for row in rows])

    def correct(self, estimator: Estimator) -> np.ndarray:
        """(N,) whether each photograph is told by the model."""
        decode = ImageDecoder(estimator.preprocessing)
        images = [cast(DecodedImage, decode(data)).pixels for data in self._bytes]
        embedded = [estimator.encode_image(part) for part in torch.stack(images).split(250)]
        told: np.ndarray = (nearest_class(estimator, torch.cat(embedded)) == self._labels).numpy()
        return told


def loaded(model: str) -> Estimator:
    """The model in float32."""
    return Estimator.load(model, None, precision="fp32")


def nearest_class(estimator: Estimator, image: torch.Tensor) -> torch.Tensor:
    """(N,) places in `CLASS_NAMES` for (N, d) image embeddings."""
    templates = [template.replace("{}", "{c}") for template in TEMPLATES]
    return (image @ classifier_weights(estimator.encode_text, _CLASSES, templates).T).argmax(dim=1)


def repair(
    tables: Mapping[str, str],
    patient: str,
    shards: Path,
    held_out: HeldOut,
    out: Path,
    steps: int,
    seeds: int,
) -> Iterator[dict[str, Any]]:
    """A row for the patient and for each arm; `tables` are the score tables by judge.

    `gain` is over `clip` on all pairs with the same seed, with a 95 % interval over photographs.
    """
    noisy = dict(
        zip(
            *pq.read_table(tables["estimator"], columns=["uid", "is_noisy"]).to_pydict().values(),
            strict=True,
        )
    )
    start = held_out.correct(loaded(patient))
    for seed in range(seeds):
        baseline: np.ndarray | None = None
        for arm in ARMS:
            selection = _selection(arm, tables[arm.judge], out)
            model = _trained(arm, selection, patient, shards, out, steps, seed)
            correct = held_out.correct(loaded(model))
            if baseline is None:
                baseline = correct
                yield {"arm": "left alone", "seed": seed, "pairs": 0, **gain(start, baseline)}
            uids = list(noisy)
            if selection is not None:
                uids = pq.read_table(selection, columns=["uid"]).column("uid").to_pylist()
            yield {
                "arm": arm.name,
                "seed": seed,
                "pairs": len(uids),
                "noisy_share": float(np.mean([noisy[uid] for uid in uids])),
                **gain(correct, baseline),
            }


def learnt_by_heart(patient: str, embeddings: Path, rows: list[Row]) -> dict[str, float]:
    """What the patient says of the photographs that it has learnt, where their label is wrong."""
    estimator = loaded(patient)
    says = nearest_class(estimator, torch.from_numpy(image_embeddings(embeddings))).numpy()
    given, true = (
        np.array([_CLASSES.index(row[name]) for row in rows]) for name in (LABEL, "clean")
    )
    wrong = given != true
    return {
        "says_given": float((says == given)[wrong].mean()),
        "says_true": float((says == true)[wrong].mean()),
        "says_true_of_clean": float((says == true)[~wrong].mean()),
    }


def scored_by_patient(shards: Path, patient: str, out: Path) -> tuple[str, Path]:
    """The score table of its own training pairs, and the embeddings."""
    table, embeddings = str(out / "by-itself.parquet"), out / "by-itself-embeddings"
    options = ScoreOptions(embeddings=str(embeddings))
    Score(shards=[str(shards)], out=table, model=patient, precision="fp32", options=options).run()
    return table, embeddings


def _selection(arm: Arm, table: str, out: Path) -> str | None:
    if arm.policy is None:
        return None
    policy = arm.policy
    if policy == "audited":
        threshold = audited_threshold(table, _ANSWERS, seed=0)
        policy = Policy(method="noise-probability", threshold=threshold)
    path = out / "selections" / f"{_file_name(arm)}.parquet"
    path.parent.mkdir(exist_ok=True)
    Select(scores=[table], out=str(path), policy=policy).run()
    return str(path)


def _trained(
    arm: Arm, selection: str | None, patient: str, shards: Path, out: Path, steps: int, seed: int
) -> str:
    run = out / "arms" / f"{_file_name(arm)}-{seed}"
    ncu = {}
    if arm.forget is not None:
        ncu = {"ncu": NcuOptions(forget_percent=arm.forget)}
    Finetune(
        method=arm.method,
        shards=[str(shards)],
        out=str(run),
        selection=selection,
        model=patient,
        pretrained=None,
        batch_size=_BATCH,
        objective=ObjectiveOptions(learning_rate=_RATE, **ncu),
        training=TrainOptions(steps=steps, tensorboard=False),
        loader=LoaderOptions(augment=False, decode_threads=1),
        precision="fp32",
        seed=seed,
    ).run()
    return f"local-dir:{run}"


def gain(correct: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    """Accuracy, and its gain over the baseline's, with a 95 % interval over photographs."""
    difference = correct.astype(float) - baseline
    half = 1.96 * float(difference.std()) / len(difference) ** 0.5
    mean = float(difference.mean())
    return {
        "accuracy": float(correct.mean()),
        "gain": mean,
        "gain_low": mean - half,
        "gain_high": mean + half,
    }


def _file_name(arm: Arm) -> str:
    return arm.name.replace(" %", "").replace(",", "").replace(" ", "-")
