"""The keys of a recipe and of its stages, besides the options of the commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ncclean.base.options import closest
from ncclean.recipes.source import Source

NAME = r"^[a-z][a-z0-9_-]*$"
_Name = Annotated[str, Field(pattern=NAME)]
_Values = Annotated[list[Any], Field(min_length=1)]


class EngineModel(BaseModel):
    """The engine of `score` and `finetune` stages that do not name one."""

    model_config = ConfigDict(extra="forbid")

    engine: str = "auto"
    ray_address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: float | None = None


class RecipeModel(BaseModel):
    """The keys of a recipe, which docs/recipes.md explains."""

    model_config = ConfigDict(extra="forbid")

    about: str | None = None
    choices: dict[_Name, Annotated[dict[_Name, dict[str, Any]], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    vars: dict[_Name, Any] = Field(default_factory=dict)
    matrix: dict[_Name, _Values] = Field(default_factory=dict, alias="for")
    repeats: int | None = Field(None, ge=1, strict=True)
    engine: EngineModel = Field(default_factory=lambda: EngineModel.model_construct())
    stages: dict[_Name, dict[str, Any] | str | None] = Field(min_length=1)


class StageModel(BaseModel):
    """Keys that every stage takes besides the options of its command."""

    command: str
    arms: dict[str, Any] | None = None
    about: str | None = None
    pairs_per_second: float | None = Field(None, gt=0)


COMMON = frozenset(StageModel.model_fields)


def check_recipe(source: Source) -> RecipeModel:
    """Check the keys of a recipe. Raises `RecipeError` for the first mistake."""
    try:
        return RecipeModel.model_validate(source.values)
    except ValidationError as error:
        first = _first(error)
        where = tuple(part for part in first["loc"] if part != "[key]")
        model = EngineModel if where[0] == "engine" and len(where) > 1 else RecipeModel
        owner = "engine" if model is EngineModel else "a recipe"
        raise source.error(where, _sentence(first, owner, model.model_fields)) from None


def check_common(source: Source, name: str, values: Mapping[str, Any]) -> StageModel:
    """The keys that every stage has. Raises `RecipeError` for the first mistake."""
    try:
        return StageModel.model_validate({key: values.get(key) for key in COMMON})
    except ValidationError as error:
        first = _first(error)
        where = ("stages", name, str(first["loc"][0]))
        raise source.error(where, _sentence(first, "a stage", StageModel.model_fields)) from None


def _first(error: ValidationError) -> Any:
    """Return the mistake to report: a wrong name is often why another one is missing."""
    mistakes = error.errors()
    return next((one for one in mistakes if one["type"] == "extra_forbidden"), mistakes[0])


def _sentence(error: Any, owner: str, names: Mapping[str, Any]) -> str:
    option = str(error["loc"][-1 if owner == "engine" else 0])
    if error["type"] == "extra_forbidden":
        options = [field.alias or name for name, field in names.items()]
        return f"{owner} has no option {option!r}{closest(option, options)}"
    if error["type"] == "missing":
        return f"{owner} needs {option}"
    if "[key]" in error["loc"]:
        return f"{error['input']!r} is not a name: use lower-case letters, digits, _ and -"
    reason = error["msg"][0].lower() + error["msg"][1:]
    place = ".".join(str(part) for part in error["loc"] if isinstance(part, str | int))
    return f"{place if owner == 'a recipe' else option}: {reason}, got {error['input']!r}"
