"""Results of two models on the same data sets, with intervals of what differs."""

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
                each.name: {
                    "a": each.a,
                    "b": each.b,
                    "difference": each.difference,
                    "low": each.low,
                    "high": each.high,
                    "excludes_zero": each.excludes_zero,
                }
                for each in self.metrics
            },
        }


def compare_results(
    a: Sequence[Evaluation], b: Sequence[Evaluation], draws: int = DRAWS, seed: int = 0
) -> list[Comparison]:
    """Compare what both have: results of the same data set and task, b minus a.

    Raises `InputError` if they have nothing in common, one has several models for a data set, or
    the two were not computed on the same samples.
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
        raise InputError(f"{a.dataset} has one image; a comparison takes at least two")
    return Comparison(
        dataset=a.dataset,
        task=a.task,
        images=a.images,
        a=a.label,
        b=b.label,
        metrics=paired_differences(
            metrics_of(a.task, before, a.classes),
            metrics_of(b.task, after, b.classes),
            draws,
            seed,
        ),
    )


def _by_task(results: Sequence[Evaluation], side: str) -> dict[tuple[str, str], Evaluation]:
    found: dict[tuple[str, str], Evaluation] = {}
    for result in results:
        key = (result.dataset, result.task)
        if key in found:
            raise InputError(
                f"{side} has {result.task} of {result.dataset} twice ({found[key].label} and "
                f"{result.label}): name the files of one model"
            )
        found[key] = result
    return found
