"""Expand repeated stages, the `for` and `repeats` of a recipe, into separate stages.

A stage is repeated for every combination of the values that its options, or those of the stages it
uses, refer to. The result is a recipe without `for`, so runs, resuming and `--dry-run` need not
know of it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclean.errors import InputError
from ncclean.recipes.references import fill, names_in, written
from ncclean.recipes.source import Source

REPEAT = "repeat"
# Names over which means and deviations are taken.
REPEATED = ("seed", REPEAT)
_MOST_STAGES = 2_000
Cell = dict[str, Any]


def expand(source: Source, matrix: Mapping[str, Sequence[Any]], repeats: int | None) -> None:
    """Write out the repeated stages, one combination of values after the other.

    Raises `RecipeError` for a name that is also a variable's or stage's, for values given twice or
    used by no stage, and for an absurd number of stages.
    """
    values = {name: list(given) for name, given in matrix.items()}
    if repeats is not None:
        values[REPEAT] = list(range(repeats))
    if not values:
        return
    stages: dict[str, Any] = source.values["stages"]
    _check(source, values, stages)
    needs = _needs(stages, values)
    if unused := next((name for name in values if not any(name in n for n in needs.values())), ""):
        where = ("for", unused) if unused in matrix else ("repeats",)
        raise source.error(where, f"no stage refers to {written(unused)}")
    count = 0
    for names in needs.values():
        size = 1
        for name in names:
            size *= len(values[name])
        count += size
    if count > _MOST_STAGES:
        raise source.error(("for",), f"{count:,} stages, the limit is {_MOST_STAGES:,}")
    repeated: dict[str, Any] = {}
    for combination in itertools.product(*values.values()):
        cell = dict(zip(values, combination, strict=True))
        for stage, options in stages.items():
            name = _name(stage, needs[stage], cell)
            if name not in repeated:
                try:
                    repeated[name] = _filled(stage, options, needs, cell)
                except InputError as error:
                    raise source.error(("stages", stage), str(error)) from error
                source.cells[name] = (stage, {key: cell[key] for key in needs[stage]})
                source.follow(("stages", stage), ("stages", name))
    source.values["stages"] = repeated


def _check(source: Source, values: Mapping[str, list[Any]], stages: Mapping[str, Any]) -> None:
    variables = source.values.get("vars") or {}
    for name, choices in values.items():
        where = ("for", name)
        if name in stages or name in variables or name == "run":
            raise source.error(where, f"{name!r} names a variable or a stage too: rename one")
        odd = next((v for v in choices if not isinstance(v, str | int | float) or v == ""), None)
        if odd is not None or None in choices:
            raise source.error(where, f"{name} takes numbers and texts, got {odd!r}")
        slugs = [_slug(value) for value in choices]
        twice = next(
            (v for v, slug in zip(choices, slugs, strict=True) if slugs.count(slug) > 1), None
        )
        if twice is not None:
            raise source.error(where, f"{name} has the value {twice!r} more than once")


def _needs(
    stages: Mapping[str, Any], values: Mapping[str, list[Any]]
) -> dict[str, tuple[str, ...]]:
    """Return the names of values that each stage, or one before it, depends on."""
    needs: dict[str, tuple[str, ...]] = {}
    for stage, options in stages.items():
        own: set[str] = set()
        for reference in names_in(options):
            first = reference.partition(".")[0]
            own |= {reference} & values.keys() or set(needs.get(first, ()))
        needs[stage] = tuple(name for name in values if name in own)
    return needs


def _filled(
    stage: str, options: Any, needs: Mapping[str, tuple[str, ...]], cell: Cell
) -> dict[str, Any]:
    """The options of a stage for one combination; its command is named, since its name is not."""

    def meaning(reference: str) -> Any:
        if reference in cell:
            return cell[reference]
        first, dot, rest = reference.partition(".")
        return written((_name(first, needs[first], cell) if first in needs else first) + dot + rest)

    return {"command": stage, **fill(options or {}, meaning)}


def _name(stage: str, names: Sequence[str], cell: Cell) -> str:
    """`osa--rate-0_2--seed-1`."""
    return "--".join([stage, *(f"{name}-{_slug(cell[name])}" for name in names)])


def _slug(value: Any) -> str:
    return re.sub(r"[^a-z0-9]+", "_", str(value).lower()).strip("_")


def of_cell(cell: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the values of a cell over which no mean is taken."""
    return ((name, value) for name, value in cell.items() if name not in REPEATED)
