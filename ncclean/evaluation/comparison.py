"""Compare the results of two models on the same data sets, with intervals of the differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncclean.errors import InputError
from ncclean.evaluation.bootstrap import Difference, paired_differences
from ncclean.evaluation.outcomes import aligned, metrics_of
from ncclean.evaluation.results import Evaluation

DRAWS = 2000


@dataclass(frozen=True)
class Comparison:
    """Models `a` and `b` on one data set, metric by metric."""

    dataset: str
    task: str
    images: int
    a: str
    b: str
    metrics: list[Difference]

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "task": self.task,
            "images": self.images,
            "a": self.a,
            "b": self.b,
            "metrics": {
                metric.name: {
                    "a": metric.a,
                    "b": metric.b,
                    "difference": metric.difference,
                    "low": metric.low,
                    "high": metric.high,
                    "excludes_zero": metric.excludes_zero,
                }
                for metric in self.metrics
            },
        }


def compare_results(
    a: Sequence[Evaluation], b: Sequence[Evaluation], draws: int = DRAWS, seed: int = 0
) -> list[Comparison]:
    """Compare two models' results on every data set and task that both have, b minus a.

    Raises `InputError` if no results do, if one side has several models for a data set, or if the
    two were not computed on the same samples.
    """
    if draws < 1:
        raise InputError(f"--draws must be at least 1, got {draws}")
    first, second = _by_task(a, "A"), _by_task(b, "B")
    common = [key for key in first if key in second]
    if not common:
        raise InputError("A and B have no data set and task in common")
    return [_compare(first[key], second[key], draws, seed) for key in common]


def _compare(a: Evaluation, b: Evaluation, draws: int, seed: int) -> Comparison:
    before, after = aligned(a.outcomes, b.outcomes)
    if a.classes != b.classes:
        raise InputError(
            f"{a.dataset} has {a.classes} classes in one result, {b.classes} in the other"
        )
    if a.images < 2:
        raise InputError(f"{a.dataset} has one image; a comparison needs at least two")
    return Comparison(
        dataset=a.dataset,
        task=a.task,
        images=a.images,
        a=a.label,
        b=b.label,
        metrics=paired_differences(
            metrics_of(a.task, before, a.classes), metrics_of(b.task, after, b.classes), draws, seed
        ),
    )


def _by_task(results: Sequence[Evaluation], side: str) -> dict[tuple[str, str], Evaluation]:
    by_task: dict[tuple[str, str], Evaluation] = {}
    for result in results:
        key = (result.dataset, result.task)
        if key in by_task:
            raise InputError(
                f"{side} has {result.task} of {result.dataset} twice ({by_task[key].label} and "
                f"{result.label}): name the files of one model"
            )
        by_task[key] = result
    return by_task
