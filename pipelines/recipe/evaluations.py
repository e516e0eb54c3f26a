"""`evaluate zeroshot`, `retrieval`, `linear-probe`, `similarity` and `compare` as stages."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclean.errors import InputError
from ncclean.evaluation.comparison import DRAWS, Comparison, compare_results
from ncclean.evaluation.embedding import EmbeddingOptions
from ncclean.evaluation.linear_probe import ProbeOptions
from ncclean.evaluation.results import Evaluation, read_results
from ncclean.execution.engine import ModelRequest

from ..evaluate_model import (
    EvaluationRequest,
    evaluate_linear_probe,
    evaluate_retrieval,
    evaluate_zeroshot,
    model_requests,
)
from ..evaluate_similarity import SimilarityRequest, evaluate_similarity
from .outcome import Outcome, Start
from .reports import Reports
from .stages import finite, write_json

# The one figure of each task that the summary of a stage shows.
_LEADING = ("acc1", "lp_acc1", "rsum")


@dataclass(frozen=True, kw_only=True)
class ModelEvaluationStage:
    """What the evaluations of models take, as their commands take it."""

    model: Sequence[str]
    space: str = "auto"
    data: Sequence[str]
    out: str
    pretrained: Sequence[str] = ()
    batch_size: int = 256
    precision: str = "auto"
    device: str = "auto"
    decode_threads: int = 2

    def __post_init__(self) -> None:
        if self.out.endswith(".json"):
            raise InputError(f"--out of a stage is a folder for all results, got {self.out}")
        _ = self.models  # checks the tags

    @property
    def models(self) -> list[ModelRequest]:
        """Raises `InputError` if the tags are neither one nor as many."""
        return model_requests(self.model, self.pretrained, self.precision, self.device, self.space)

    @property
    def embedding(self) -> EmbeddingOptions:
        return EmbeddingOptions(batch_size=self.batch_size, decode_threads=self.decode_threads)

    def request(self) -> EvaluationRequest:
        return EvaluationRequest(
            models=self.models, data=self.data, out=self.out, embedding=self.embedding
        )


@dataclass(frozen=True, kw_only=True)
class LinearProbeStage(ModelEvaluationStage):
    """`evaluate linear-probe`."""

    solver: str = "lbfgs"
    epochs: int = 60
    learning_rate: float = 3e-4
    seed: int = 0

    def request(self) -> EvaluationRequest:
        probe = ProbeOptions(
            solver=self.solver,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )
        return dataclasses.replace(super().request(), probe=probe)


@dataclass(frozen=True, kw_only=True)
class SimilarityStage(ModelEvaluationStage):
    """`evaluate similarity`; `out` is the folder of `similarity.json`."""

    against: str | None = None
    plot: str | None = None


@dataclass(frozen=True, kw_only=True)
class ComparisonStage:
    """`evaluate compare`: results of two models; `out` is a JSON file."""

    a: str
    b: str
    out: str
    draws: int = DRAWS
    seed: int = 0


Evaluate = Callable[[EvaluationRequest, Callable[[str], None]], list[Evaluation]]


def runner(evaluate: Evaluate) -> Callable[[ModelEvaluationStage, Start, Reports], Outcome]:
    """A stage that evaluates models on data sets and writes clip_benchmark's JSON."""

    def run(stage: ModelEvaluationStage, start: Start, reports: Reports) -> Outcome:
        if start is not Start.NEW:
            clear_results(stage)  # of other models or data sets
        found = evaluate(stage.request(), reports.say)
        result = {"results": [finite(each.to_json()) for each in found]}
        return Outcome(result, _figures(found), [stage.out])

    return run


run_zeroshot = runner(evaluate_zeroshot)
run_retrieval = runner(evaluate_retrieval)
run_linear_probe = runner(evaluate_linear_probe)


def run_similarity(stage: SimilarityStage, start: Start, reports: Reports) -> Outcome:
    """The cosines of matched and mismatched pairs."""
    models = stage.models
    if stage.against is not None:
        models = dataclasses.replace(stage, model=[*stage.model, stage.against]).models
    request = SimilarityRequest(
        models=models,
        data=stage.data,
        plot=None if stage.plot is None else Path(stage.plot),
        embedding=stage.embedding,
    )
    found = evaluate_similarity(request, reports.say)
    result = {"models": [finite(each.to_json()) for each in found]}
    path = str(Path(stage.out) / "similarity.json")
    write_json(path, result)
    return Outcome(result, {}, [path, *([stage.plot] if stage.plot else [])])


def run_compare(stage: ComparisonStage, start: Start, reports: Reports) -> Outcome:
    """Differences of two models with intervals."""
    reports.say(f"comparing {stage.a} and {stage.b}")
    found = compare_results(read_results(stage.a), read_results(stage.b), stage.draws, stage.seed)
    result = {"comparisons": [finite(each.to_json()) for each in found], "draws": stage.draws}
    write_json(stage.out, result)
    return Outcome(result, dict(map(_difference, found)), [stage.out])


def clear_results(stage: ModelEvaluationStage) -> None:
    """Remove the results of an earlier start."""
    shutil.rmtree(stage.out, ignore_errors=True)


def _figures(found: Sequence[Evaluation]) -> dict[str, str]:
    """The leading metric of each model, the mean over its data sets."""
    values: dict[tuple[str, str], list[float]] = {}
    for each in found:
        name = next((name for name in _LEADING if name in each.metrics), None)
        value = each.metrics[name] if name is not None else None
        if name is not None and value is not None:
            values.setdefault((each.label.rsplit("/", 1)[-1], name), []).append(value)
    return {
        f"{label}, {name}": shown(name, sum(all_of) / len(all_of))
        for (label, name), all_of in values.items()
    }


def _difference(found: Comparison) -> tuple[str, str]:
    leading = next((m for m in found.metrics if m.name in _LEADING), found.metrics[0])
    value: Any = leading.difference
    sign = "+" if value >= 0 else ""
    return found.dataset, f"{leading.name} {sign}{shown(leading.name, value)}"


def shown(metric: str, value: float) -> str:
    """A metric as text: shares in percent, and `rsum`, which is in percent already."""
    return f"{value:.1f}" if metric.endswith("rsum") else f"{value:.1%}"
