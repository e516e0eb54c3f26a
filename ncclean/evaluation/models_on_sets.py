"""Models on clip_benchmark's data sets: a model is loaded once and sees one set after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, BenchmarkSet, find_sets
from ncclean.evaluation import model_tasks, outcomes
from ncclean.evaluation.options import EmbeddingOptions, ProbeOptions
from ncclean.evaluation.results import (
    Evaluation,
    check_free_results,
    check_out,
    file_name,
    write_results,
)
from ncclean.models.estimator import Estimator
from ncclean.models.request import ModelRequest
from ncclean.progress import SILENT, Progress


@dataclass(frozen=True)
class Task:
    """A measurement of models: its name, the kind of its sets, their splits, and the function."""

    name: str
    kind: str
    splits: Sequence[str]
    measure: Callable[[Estimator, BenchmarkSet], Evaluation]


def zeroshot_task(options: EmbeddingOptions) -> Task:
    """The task of zero-shot classification by prompts, for `evaluate`."""
    measure = partial(model_tasks.zeroshot, options)
    return Task(outcomes.ZEROSHOT, CLASSIFICATION, ("test",), measure)


def retrieval_task(options: EmbeddingOptions) -> Task:
    """The task of retrieval in both directions, for `evaluate`."""
    return Task(
        outcomes.RETRIEVAL,
        RETRIEVAL,
        ("test",),
        lambda m, one: model_tasks.retrieval_of(m, m, one, options),
    )


def linear_probe_task(options: EmbeddingOptions, probe: ProbeOptions) -> Task:
    """The task of a linear classifier on frozen embeddings, for `evaluate`."""
    measure = partial(model_tasks.linear_probe, probe, options)
    return Task(outcomes.LINEAR_PROBE, CLASSIFICATION, ("train", "test"), measure)


def evaluate(
    task: Task,
    models: Sequence[ModelRequest],
    data: Sequence[str],
    *,
    out: str | None = None,
    command: str = "",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> tuple[list[Evaluation], list[str]]:
    """Evaluate every model on every set; returns the results and the files written.

    `command` is the one whose results may be replaced. Raises `InputError` for a set that lacks a
    file or has a label without a class, `ModelError` for a model that cannot be loaded.
    """
    sets = find_sets(data, task.kind, task.splits)
    total = len(sets) * len(models)
    check_out(out, total)
    check_free_results(out, (), command, overwrite)
    for one in sets:  # a missing shard must not come up after an hour
        for split in task.splits:
            one.shards(split)
    results: list[Evaluation] = []
    for model in models:
        progress.say(f"loading {model.model}")
        estimator = model.load()
        about = estimator.identity
        names = [file_name(one.name, about.pretrained, about.model, task.name) for one in sets]
        check_free_results(out, names, command, overwrite)
        for one in sets:
            progress.say(f"{estimator.identity.model}: {one.name}")
            results.append(task.measure(estimator, one))
            progress.advance(len(results), total, "results")
    files = []
    if out is not None:
        files = write_results(results, out, command)
    return results, files
