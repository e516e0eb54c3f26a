"""The shape of a recipe as pydantic models; those of the stages come from the commands' options."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from .commands import COMMANDS, Command
from .options import Option
from .source import Source

NAME = r"^[a-z][a-z0-9_-]*$"
_Name = Annotated[str, Field(pattern=NAME)]


class EngineModel(BaseModel):
    """Where `score` and `finetune` stages run that do not say otherwise."""

    model_config = ConfigDict(extra="forbid")

    engine: str = Field("auto", description="`local`, `ray`; auto is ray with an address.")
    ray_address: str | None = Field(None, description="`auto`, `HOST:PORT`, `ray://HOST:10001`.")
    workers: int | None = Field(None, description="Ray workers.")
    gpus_per_worker: float | None = Field(None, description="GPUs of a worker.")
    cpus_per_worker: float | None = Field(None, description="Cores of a worker.")


class RecipeModel(BaseModel):
    """The keys of a recipe."""

    model_config = ConfigDict(extra="forbid")

    about: str | None = Field(None, description="One sentence, shown in lists and on the page.")
    vars: dict[_Name, Any] = Field(
        default_factory=dict, description="Values to refer to as `${name}`; `--set name=value`."
    )
    engine: EngineModel = Field(
        default_factory=lambda: EngineModel.model_construct(),
        description="Engine options of all `score` stages.",
    )
    stages: dict[_Name, dict[str, Any] | None] = Field(
        description="Stages by name, in the order they run.", min_length=1
    )


class StageModel(BaseModel):
    """What every stage takes besides the options of its command."""

    model_config = ConfigDict(extra="forbid")

    command: str = Field(description="The command; may be left out if the stage is called so.")
    about: str | None = Field(None, description="One sentence for the page.")
    pairs_per_second: float | None = Field(
        None, gt=0, description="Stated speed of one worker, for `--dry-run`; else it is measured."
    )


COMMON = frozenset(StageModel.model_fields)


@cache
def stage_model(name: str) -> type[BaseModel]:
    """The model of the stages of a command."""
    command = COMMANDS[name]
    fields: dict[str, Any] = {"command": (Literal[name], Field())}
    fields |= {
        option.name: (_accepted(command, option), _default(command, option))
        for option in command.options.values()
    }
    return create_model(
        name.title().replace(" ", "").replace("-", "") + "Stage",
        __base__=StageModel,
        **fields,
    )


def check_recipe(source: Source) -> RecipeModel:
    """Raises `RecipeError` for the first thing that is wrong with the keys."""
    try:
        return RecipeModel.model_validate(source.values)
    except ValidationError as error:
        first = _first(error)
        where = tuple(part for part in first["loc"] if part != "[key]")
        known = EngineModel if where[0] == "engine" and len(where) > 1 else RecipeModel
        owner = "engine" if known is EngineModel else "a recipe"
        raise source.error(where, _sentence(first, owner, known.model_fields)) from None


def check_stage(source: Source, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a stage, of the right types. Raises `RecipeError` for the first mistake."""
    command = values["command"]
    if command not in COMMANDS:
        close = closest(str(command), list(COMMANDS))
        where = ("stages", name, "command")
        raise source.error(where, f"no command {command!r}{close}; there are {', '.join(COMMANDS)}")
    model = stage_model(command)
    try:
        return model.model_validate(dict(values)).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = _first(error)
        option = str(first["loc"][0])
        raise source.error(
            ("stages", name, option), _sentence(first, command, model.model_fields)
        ) from None


def _first(error: ValidationError) -> Any:
    """What to tell of several mistakes: a wrong name is often why another one is missing."""
    found = error.errors()
    return next((each for each in found if each["type"] == "extra_forbidden"), found[0])


def _sentence(error: Any, owner: str, known: Mapping[str, Any]) -> str:
    option = str(error["loc"][-1 if owner == "engine" else 0])
    if error["type"] == "extra_forbidden":
        return f"{owner} has no option {option!r}{closest(option, list(known))}"
    if error["type"] == "missing":
        return f"{owner} needs {option}"
    if "[key]" in error["loc"]:
        return f"{error['input']!r} is no name: use lower-case letters, digits, _ and -"
    told = error["msg"][0].lower() + error["msg"][1:]
    place = ".".join(str(part) for part in error["loc"] if isinstance(part, str | int))
    return f"{place if owner == 'a recipe' else option}: {told}, got {error['input']!r}"


def closest(word: str, known: Sequence[str]) -> str:
    """` (did you mean ...?)`, or nothing if no known word is like it."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _accepted(command: Command, option: Option) -> Any:
    takes = option.takes
    if option.name in command.inside:
        return bool | takes
    if option.is_list or Mapping in _origins(takes):
        return Annotated[takes, BeforeValidator(_as_list)]
    return takes


def _origins(takes: Any) -> list[Any]:
    return [typing.get_origin(part) for part in (takes, *typing.get_args(takes))]


def _as_list(value: Any) -> Any:
    """One value where several may be given."""
    return [value] if isinstance(value, str | int | float) else value


def _default(command: Command, option: Option) -> Any:
    if option.name in ("out", "decode_threads"):
        return Field(None)  # decided by the stage and by the machine
    return Field() if option.is_required else Field(option.default)
