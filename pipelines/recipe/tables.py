"""The results of a run as tables: the noise that scores found, and what models can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ncclean.evaluation.noise_evaluation import ALL

from .folder import StageRecord
from .load import Recipe

KIND_NAMES = {
    ALL: "all noise",
    "ncr": "permuted caption",
    "decl": "permuted image",
    "per_batch": "permuted in a batch",
    "hard": "one wrong word",
    "junk": "boilerplate caption",
}


@dataclass(frozen=True)
class ResultTable:
    """A table to show; the first column names the rows, the others are numbers as text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def result_tables(recipe: Recipe, records: Mapping[str, StageRecord]) -> Iterator[ResultTable]:
    """The tables that the finished stages have results for."""
    for name, record in records.items():
        if record.done and record.command == "evaluate noise":
            yield from _noise_tables(name, record.result)
    models = [
        (name, record)
        for name, record in records.items()
        if record.done and record.command in ("evaluate zeroshot", "evaluate retrieval")
    ]
    if models:
        yield _model_table(recipe, models)


def _noise_tables(stage: str, found: Mapping[str, Any]) -> Iterator[ResultTable]:
    kinds = list(found["noisy"])
    heads = tuple(f"{KIND_NAMES.get(k, k)} ({found['noisy'][k]:,})" for k in kinds)
    rows = []
    for score in found["scores"]:
        by_kind = {one["kind"]: one["report"]["auroc"] for one in score["kinds"]}
        rows.append((score["column"], *(_decimal(by_kind.get(kind)) for kind in kinds)))
    yield ResultTable(f"{stage}: AUROC against clean pairs", ("score", *heads), tuple(rows))
    rules = tuple(
        (
            rule["rule"],
            *(_share(rule["noise_caught"].get(kind)) for kind in kinds),
            _share(None if rule["clean_kept"] is None else 1 - rule["clean_kept"]),
        )
        for rule in found["rules"]
    )
    if rules:
        title = f"{stage}: share flagged as noisy"
        yield ResultTable(title, ("rule", *heads, "clean pairs"), rules)


def _model_table(recipe: Recipe, models: list[tuple[str, StageRecord]]) -> ResultTable:
    """One row for each model, one column for each figure of each set; the stages' names that
    differ in nothing but the model fall into one row."""
    rows: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for name, record in models:
        label = str(recipe.stages[name].about or recipe.stages[name].symbolic.get("model", name))
        for head, value in record.figures.items():
            heads += [head] if head not in heads else []
            rows.setdefault(label, {})[head] = value
    return ResultTable(
        "Models on held-out data",
        ("model", *heads),
        tuple((label, *(row.get(head, "") for head in heads)) for label, row in rows.items()),
    )


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
