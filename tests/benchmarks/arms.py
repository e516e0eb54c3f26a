"""The arms of a study: a model goes on from a start by an objective, on pairs that a policy keeps.

All arms of a study take the same number of optimiser steps at the same batch size, so an arm on
fewer pairs sees them more often. Commands of ncclean do the work: what lies in the folder of a
study is not made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow.parquet as pq
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.select import Select

from ncclean.data.options import LoaderOptions
from ncclean.selection.policy import Policy
from ncclean.training import finetune
from ncclean.training.objectives.base import Objective
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.options import TrainOptions

LEFT_ALONE, CLIP_ON_ALL, ORACLE = "left alone", "clip on all", "oracle"
CLEAN = Policy(where="NOT is_noisy")
SELECTED = Policy(method="noise-probability")
WEIGHTED = Policy(weights="osa_weight")


def _unchanged(objective: Objective) -> Objective:
    return objective


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An objective on all pairs, or on those of a policy over the score table of a `judge`.

    `ncu` are options of NCU and gradient ascent, `options` those of the objective; `change` gets
    the objective before it trains. `corpus` names other shards to train on than the study's.
    """

    name: str
    method: str = "clip"
    policy: Policy | None = None
    judge: str = "estimator"
    ncu: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Objective], Objective] = _unchanged
    corpus: str = "noisy"

    @property
    def file_name(self) -> str:
        """The name without spaces, commas and percent signs."""
        return self.name.translate(str.maketrans(" :", "--", ",%()+="))


@dataclass(frozen=True, kw_only=True)
class Training:
    """What all arms of a study share; without `steps` an arm trains for the epochs it names."""

    steps: int | None
    batch_size: int
    learning_rate: float
    precision: str = "fp32"
    weight_decay: float = 0.2
    loader: Mapping[str, Any] = field(default_factory=lambda: {"augment": False})

    def train(self, arm: Arm, start: str, shards: Path, out: Path, seed: int, **more: Any) -> str:
        """Train a model by an arm into a folder; its name. `more` are options of `finetune`."""
        options = {"learning_rate": self.learning_rate, "ncu": NcuOptions(**arm.ncu), **arm.options}
        make = finetune.make_objective
        with mock.patch.object(finetune, "make_objective", lambda *args: arm.change(make(*args))):
            Finetune(
                method=arm.method,
                model=start,
                pretrained=None,
                shards=[str(shards)],
                out=str(out),
                batch_size=self.batch_size,
                objective=ObjectiveOptions(**options),
                training=TrainOptions(
                    steps=self.steps, weight_decay=self.weight_decay, tensorboard=False
                ),
                loader=LoaderOptions(decode_threads=1, **self.loader),
                precision=self.precision,
                seed=seed,
                **more,
            ).run()
        return f"local-dir:{out}"


def from_scratch(
    config: Mapping[str, Any], training: Training, arm: Arm, shards: Path, out: Path, seed: int,
    **more: Any,
) -> str:  # fmt: skip
    """Train a model of an architecture from random weights; its name."""
    file = out.parent / "model.json"
    if not file.exists():  # its time is part of what the training goes on from
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(config))
    return training.train(arm, str(file), shards, out, seed, init="random", **more)


def selected(policy: Policy, table: str, path: Path) -> tuple[str, dict[str, Any]]:
    """The selection of a policy, how many pairs it keeps, and the share of them that is noisy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Select(scores=[table], out=str(path), policy=policy, overwrite=True).run()
    keys = {"uid", "caption_number"} & set(pq.read_schema(path).names)
    pairs, noisy = duckdb.execute(
        "SELECT count(*), avg(is_noisy::INT) FROM read_parquet(?) JOIN read_parquet(?) "
        f"USING ({', '.join(keys)})",
        [str(path), table],
    ).fetchall()[0]
    return str(path), {"pairs": pairs, "noisy_share": noisy}


def gain(correct: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    """Accuracy of (N,) hits, and its gain over the baseline's, with a 95 % interval over N."""
    difference = correct.astype(float) - baseline
    half = 1.96 * float(difference.std()) / len(difference) ** 0.5
    mean = float(difference.mean())
    return {
        "accuracy": float(correct.mean()), "gain": mean, "gain_low": mean - half,
        "gain_high": mean + half,
    }  # fmt: skip
