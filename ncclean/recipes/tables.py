"""The results of a run as tables: the noise that scores results, and what models can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclean.base.formats import Table, decimal, percentage, share
from ncclean.evaluation.noise_evaluation import ALL
from ncclean.recipes.folder import StageRecord
from ncclean.recipes.stage_facts import StageFacts

MODEL_COMMANDS = tuple(f"evaluate {name}" for name in ("zeroshot", "retrieval", "linear-probe"))
# Figures shown for each task; the results have all.
_LEADING = ("acc1", "lp_acc1", "image_retrieval_recall@1", "text_retrieval_recall@1", "rsum")
KIND_NAMES = {
    ALL: "all noise",
    "ncr": "permuted caption",
    "decl": "permuted image",
    "per_batch": "permuted in a batch",
    "hard": "one wrong word",
    "junk": "boilerplate caption",
}


def result_tables(
    stages: Mapping[str, StageFacts], records: Mapping[str, StageRecord]
) -> Iterator[Table]:
    """The tables that the finished stages have results for."""
    for name, record in records.items():
        if record.done and record.command == "evaluate noise":
            yield from _noise_tables(name, record.result)
    if results := named_results(stages, records):
        yield _model_table(results)


def _noise_tables(stage: str, evaluation: Mapping[str, Any]) -> Iterator[Table]:
    kinds = list(evaluation["noisy"])
    heads = tuple(f"{KIND_NAMES.get(k, k)} ({evaluation['noisy'][k]:,})" for k in kinds)
    rows = []
    for score in evaluation["scores"]:
        by_kind = {one["kind"]: one["report"]["auroc"] for one in score["kinds"]}
        rows.append((score["column"], *(decimal(by_kind.get(kind)) for kind in kinds)))
    yield Table(f"{stage}: AUROC against clean pairs", ("score", *heads), tuple(rows))
    rules = tuple(
        (
            rule["rule"],
            *(share(rule["noise_caught"].get(kind)) for kind in kinds),
            share(None if rule["clean_kept"] is None else 1 - rule["clean_kept"]),
        )
        for rule in evaluation["rules"]
    )
    if rules:
        title = f"{stage}: share flagged as noisy"
        yield Table(title, ("rule", *heads, "clean pairs"), rules)


def _model_table(results: list[tuple[str, str, Mapping[str, Any]]]) -> Table:
    """A row for each leading figure of each data set, a column for each model."""
    rows: dict[str, dict[str, str]] = {}
    models: list[str] = []
    for _, name, result in results:
        models += [name] if name not in models else []
        for metric in _LEADING:
            value = result["metrics"].get(metric)
            if value is not None:
                row = rows.setdefault(f"{result['dataset']} {metric}", {})
                row[name] = percentage(metric, value)
    return Table(
        "Models on held-out data",
        ("figure", *models),
        tuple((label, *(row.get(name, "") for name in models)) for label, row in rows.items()),
    )


def named_results(
    stages: Mapping[str, StageFacts], records: Mapping[str, StageRecord]
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return the results for models, each with its stage and the model's name.

    If several stages measure a model on a set, such as with two solvers, the name has the stage.
    """
    results = [
        ((record.command, result["dataset"], _model_name(stages, result)), stage, result)
        for stage, record in records.items()
        if record.done and record.command in MODEL_COMMANDS
        for result in record.result["results"]
    ]
    bases: dict[tuple[str, str, str], set[str]] = {}
    for measured, stage, _ in results:
        bases.setdefault(measured, set()).add(stages[stage].base)
    named = []
    for measured, stage, result in results:
        name = measured[-1]
        if len(bases[measured]) > 1:
            name = f"{name} ({stages[stage].base})"
        named.append((stage, name, result))
    return named


def _model_name(stages: Mapping[str, StageFacts], result: Mapping[str, Any]) -> str:
    """The stage that made the model, else the model's own name."""
    model = result["model"]
    return next((stage.base for stage in stages.values() if stage.model == model), str(model))
