"""Scores by a model for its own training corpus: each half by a copy that has left it behind.

A model knows the wrong captions of its own corpus by heart and takes them for right. A copy that
goes on with one half alone forgets what it knew by heart of the other, sooner than what it has
learnt in general, and then scores that other half.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import cast

from ncclean.data.weighted_loader import WeightedLoader
from ncclean.models.estimator import Estimator
from ncclean.training.objectives.base import shared_out
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer

# Steps and learning rate of each copy.
STEPS, LEARNING_RATE, BATCH_SIZE = 20, 1e-3, 256
FACTS = {"steps": STEPS, "learning_rate": LEARNING_RATE, "batch_size": BATCH_SIZE}


def go_on(estimator: Estimator, loader: WeightedLoader, seed: int) -> None:
    """Train a copy on its half by the CLIP objective."""
    options = ObjectiveOptions(learning_rate=LEARNING_RATE)
    objective = make_objective("clip", options, estimator.tokenize)
    objective.phases = shared_out(  # type: ignore[misc]
        objective.phases, STEPS, loader.steps_per_epoch
    )
    with tempfile.TemporaryDirectory() as scratch:
        Trainer(
            estimator,
            objective,
            cast(WeightedLoader, loader),
            dataclasses.replace(TrainOptions(), tensorboard=False, save_minutes=1e6, seed=seed),
            Path(scratch),
        ).run()
