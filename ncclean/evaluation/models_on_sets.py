"""Models on evaluation sets: a model is loaded once and sees one set after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ncclean.base.progress import SILENT, Progress
from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, EvaluationSet, find_sets
from ncclean.data.options import SourceOptions
from ncclean.errors import InputError
from ncclean.evaluation import model_tasks, outcomes
from ncclean.evaluation.options import EmbeddingOptions, ProbeOptions
from ncclean.evaluation.results import (
    Evaluation,
    check_free_results,
    check_out,
    file_name,
    write_results,
)
from ncclean.evaluation.sample_weights import SampleWeights
from ncclean.models.estimator import Estimator
from ncclean.models.request import ModelRequest


@dataclass(frozen=True)
class Task:
    """A measurement of models: its name, the kind of its sets, their splits, and the function."""

    name: str
    kind: str
    splits: Sequence[str]
    measure: Callable[[Estimator, EvaluationSet], Evaluation]
    source_options: SourceOptions | None = None


def zeroshot_task(options: EmbeddingOptions) -> Task:
    """The task of zero-shot classification by prompts, for `evaluate`."""
    measure = partial(model_tasks.zeroshot, options)
    return Task(outcomes.ZEROSHOT, CLASSIFICATION, ("test",), measure)


def retrieval_task(
    options: EmbeddingOptions,
    source_options: SourceOptions | None = None,
    captions_per_image: int | None = None,
) -> Task:
    """The task of retrieval in both directions, for `evaluate`."""
    return Task(
        outcomes.RETRIEVAL,
        RETRIEVAL,
        ("test",),
        lambda m, one: model_tasks.retrieval_of(m, m, one, options, captions_per_image),
        source_options,
    )


def linear_probe_task(
    options: EmbeddingOptions,
    probe: ProbeOptions,
    set_epochs: Mapping[str, int] | None = None,
    weighting: SampleWeights | None = None,
) -> Task:
    """The task of a linear classifier on frozen embeddings, for `evaluate`."""
    measure = partial(model_tasks.linear_probe, probe, options, set_epochs or {}, weighting)
    return Task(outcomes.LINEAR_PROBE, CLASSIFICATION, ("train", "test"), measure)


def evaluate(
    task: Task,
    models: Sequence[ModelRequest],
    data: Sequence[str],
    *,
    out: str | None = None,
    command: str = "",
    overwrite: bool = False,
    expected: Iterable[str] = (),
    progress: Progress = SILENT,
) -> tuple[list[Evaluation], list[str]]:
    """Evaluate every model on every set; returns the results and the files written.

    `expected` are names of sets that options speak of. `command` is the one whose results may be
    replaced. Raises `InputError` for a set that lacks a file or has a label without a class, and
    for one that is expected and not there, `ModelError` for a model that cannot be loaded.
    """
    sets = find_sets(data, task.kind, task.splits, task.source_options)
    for name in expected:
        if name not in {one.name for one in sets}:
            there = ", ".join(one.name for one in sets)
            raise InputError(f"there is no set {name}: these are {there}")
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
