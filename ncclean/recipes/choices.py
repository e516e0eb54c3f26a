"""Expand the choices and arms of a recipe into variables and stages.

A choice, such as that of a data set, is a named group of `--set`. Arms are stages that share one
stage's options. The result is a recipe without either, as for `for` (`matrix`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ncclean.base.options import closest
from ncclean.errors import InputError
from ncclean.recipes.references import fill, names_in, written
from ncclean.recipes.source import RecipeError, Source


def choose(source: Source, picks: Mapping[str, str]) -> None:
    """Apply one value of each choice: the one that `picks` names, else the first.

    Raises `RecipeError` for a value that a choice does not have.
    """
    for choice, values in (source.values.pop("choices", None) or {}).items():
        value = picks.get(choice, next(iter(values)))
        if value not in values:
            hint = closest(value, list(values))
            raise RecipeError(f"--set {choice}: no {value!r}{hint}; there are {', '.join(values)}")
        source.chosen[choice] = f"{choice}={value}"
        for key, setting in values[value].items():
            line = source.lines.get(("choices", choice, value, key), 1)
            if key == "about":
                source.chosen[choice] += f": {setting}"
            else:
                source.lines[source.assign(key, setting, declares=True)] = line


def write_out(source: Source, required: Callable[[str], Collection[str]]) -> None:
    """Expand arms, substitute texts for stages, and omit nulls.

    `required` has the options that a command needs: a stage that loses one is also omitted, as are
    values of `for` that no stage refers to any more. Raises `RecipeError` for arms that are not
    options by name.
    """
    gone = source.left_out
    # A person's null may remove more than was named, which is logged.
    nulled = gone & {where[-1] for where in source.changed}
    meanings: dict[str, list[Any]] = {}
    for name, value in list(source.values.get("vars", {}).items()):
        meant = [] if name in gone else _meant(value, gone, {})
        if not meant:
            gone.add(name)
            if _refers(value, nulled):
                nulled.add(name)
            del source.values["vars"][name]
    stages: dict[str, dict[str, Any]] = {}
    for stage, options in source.values["stages"].items():
        if isinstance(options, str):
            meanings[stage] = [options]
        elif stage not in gone:
            own = {"command": stage, **(options or {})}
            arms = _arms(source, stage, own.pop("arms", None))
            stages |= {name: {**own, **arm} for name, arm in arms.items()}
            meanings[stage] = [written(name) for name in arms]
    source.values["stages"] = written_out = {}
    without: list[str] = []
    for stage, options in stages.items():
        try:
            meant_by = {name: _meant(value, gone, meanings) for name, value in options.items()}
        except InputError as error:
            raise source.error(("stages", stage), str(error)) from error
        lost = {name for name, meant in meant_by.items() if not meant}
        unasked = [name for name in meant_by if name in lost and _refers(options[name], nulled)]
        if lost & set(required(str(options["command"]))):
            gone.add(stage)
            if unasked:
                nulled.add(stage)
                without.append(stage)
        else:
            without += [f"{stage}.{name}" for name in unasked]
            written_out[stage] = {
                name: meant if len(meant) > 1 else meant[0]
                for name, meant in meant_by.items()
                if meant
            }
    if without:
        source.chosen["null"] = f"left out, as they need what is null: {', '.join(without)}"
    for name in set(names_in(source.text)) - set(names_in(list(written_out.values()))):
        source.values.get("for", {}).pop(name, None)


def _arms(source: Source, stage: str, arms: Any) -> dict[str, dict[str, Any]]:
    """Return the options of each arm of a stage to run; none for a stage without arms."""
    if arms is None:
        return {stage: {}}
    where = ("stages", stage, "arms")
    if not isinstance(arms, dict) or not all(isinstance(arm or {}, dict) for arm in arms.values()):
        raise source.error(where, "arms are options by name, as in `osa: {method: osa}`")
    names = source.arms.get(stage)
    if names is None:
        names = list(arms)
    for name in names:
        if name not in arms:
            raise source.error(where, f"no arm {name!r}; there are {', '.join(arms)}")
        if name in source.values["stages"]:
            raise source.error((*where, name), f"{name!r} names a stage, too: rename one of them")
        source.follow(where[:2], ("stages", name))
        source.follow((*where, name), ("stages", name))
    source.left_out |= arms.keys() - set(names)
    return {name: arms[name] or {} for name in arms if name in names}


def _refers(value: Any, names: Collection[str]) -> bool:
    """Whether a value refers to one of the names."""
    return any(name.partition(".")[0] in names for name in names_in(value))


def _meant(value: Any, gone: Collection[str], meanings: Mapping[str, list[Any]]) -> list[Any]:
    """Replace names in a value by the arms and texts that they stand for.

    Returns several for the name of several arms, none for a reference to something omitted.
    """
    if isinstance(value, list):
        meant = [inner for item in value for inner in _meant(item, gone, meanings)]
        return [meant] if meant or not value else []
    if isinstance(value, dict):
        inner = {key: _meant(item, gone, meanings) for key, item in value.items()}
        return [{key: meant[0] for key, meant in inner.items() if meant}]
    names = names_in(value)
    if _refers(value, gone):
        return []
    if names and value == written(names[0]):
        return meanings.get(names[0], [value])

    def meaning(name: str) -> Any:
        meant = meanings.get(name, [written(name)])
        if len(meant) != 1:
            raise InputError(f"{written(name)} is {len(meant)} arms, not part of a text: {value!r}")
        return meant[0]

    return [fill(value, meaning)]
