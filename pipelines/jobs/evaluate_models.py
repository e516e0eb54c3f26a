"""Models on clip_benchmark's data sets: a model is loaded once and sees one set after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, BenchmarkSet, find_sets
from ncclean.evaluation import model_tasks, outcomes
from ncclean.evaluation.results import (
    Evaluation,
    check_free_results,
    check_out,
    file_name,
    write_results,
)
from ncclean.models.estimator import Estimator
from ncclean.models.request import ModelRequest

from ..evaluate_models import (
    EvaluateLinearProbe,
    EvaluateRetrieval,
    ModelEvaluation,
    ModelOptions,
)
from ..progress import Progress


def evaluate(command: ModelEvaluation, progress: Progress) -> tuple[list[Evaluation], list[str]]:
    """The results of every model on every set, and the files written.

    Raises `InputError` for a set that lacks a file or has a label without a class, `ModelError` for
    a model that cannot be loaded.
    """
    kind, splits, task, measure = _task(command)
    sets = find_sets(command.data, kind, splits)
    total = len(sets) * len(command.model)
    check_out(command.out, total)
    check_free_results(command.out, (), command.name, command.overwrite)
    for one in sets:  # a missing shard must not come up after an hour
        for split in splits:
            one.shards(split)
    results: list[Evaluation] = []
    for model in requested_models(command):
        progress.say(f"loading {model.model}")
        estimator = model.load()
        about = estimator.identity
        names = [file_name(one.name, about.pretrained, about.model, task) for one in sets]
        check_free_results(command.out, names, command.name, command.overwrite)
        for one in sets:
            progress.say(f"{estimator.identity.model}: {one.name}")
            results.append(measure(estimator, one))
            progress.advance(len(results), total, "results")
    files = []
    if command.out is not None:
        files = write_results(results, command.out, command.name)
    return results, files


def requested_models(command: ModelOptions) -> Iterator[ModelRequest]:
    """The models of a command, each with its tag."""
    for model, tag in command.named_models:
        yield ModelRequest(
            model=model,
            pretrained=tag,
            precision=command.precision,
            device=command.device,
            space=command.space,
        )


Measure = Callable[[Estimator, BenchmarkSet], Evaluation]


def _task(command: ModelEvaluation) -> tuple[str, Sequence[str], str, Measure]:
    """The kind of sets, their splits, the task, and what is measured on one."""
    options = command.embedding
    if isinstance(command, EvaluateRetrieval):
        return (
            RETRIEVAL,
            ("test",),
            outcomes.RETRIEVAL,
            lambda m, one: model_tasks.retrieval_of(m, m, one, options),
        )
    if isinstance(command, EvaluateLinearProbe):
        probe = command.probe_options
        measure = partial(model_tasks.linear_probe, probe, options)
        return CLASSIFICATION, ("train", "test"), outcomes.LINEAR_PROBE, measure
    return CLASSIFICATION, ("test",), outcomes.ZEROSHOT, partial(model_tasks.zeroshot, options)
