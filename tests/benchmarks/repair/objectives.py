"""The objective of an arm, and its phases at the number of steps that all arms of a table take."""

from __future__ import annotations

import dataclasses

from ncclean.models.estimator import Estimator
from ncclean.training.objectives.base import Objective, Phase
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from repair.arms import Arm
from repair.forgetting import SearchedNcu
from repair.released import PartlyReleasedNcu, PartlyReleasedOsa


def objective_of(arm: Arm, options: ObjectiveOptions, estimator: Estimator) -> Objective:
    """ncclean's objective, or the one that the arm has in its place."""
    assert arm.method is not None
    assert options.learning_rate is not None
    if arm.forgetting is not None:
        return SearchedNcu(arm.forgetting, options.ncu, options.learning_rate)
    objective = make_objective(arm.method, options, estimator.tokenize)
    if arm.released is None:
        return objective
    if arm.method == "osa":
        return PartlyReleasedOsa(arm.released, objective.phases, estimator)
    return PartlyReleasedNcu(arm.released, options.ncu, options.learning_rate)


def shared_out(
    phases: tuple[Phase, ...], steps: int, first_share: float, steps_per_epoch: int
) -> tuple[Phase, ...]:
    """The phases with `steps` steps in all, of which the first of two has its share."""
    first = round(first_share * steps)
    counts = (steps,) if len(phases) == 1 else (first, steps - first)
    return tuple(
        dataclasses.replace(phase, steps=count, epochs=-(-count // steps_per_epoch))
        for phase, count in zip(phases, counts, strict=True)
    )
