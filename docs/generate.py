"""Write the generated pages: `schema.md` from the Arrow schema, `cli.md` and `recipe-reference.md`
from the declarations of the commands; and `ncclean/__init__.pyi`, the commands as functions. The
prose of the pages is in docs/templates.

    python docs/generate.py

tests/test_docs.py fails when a page is not what this script makes.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from ncclean_cli.app import DEBUG, VERSION, app
from ncclean_cli.command_help import command_help, entries, switch
from ncclean_pipelines.command import Command
from ncclean_pipelines.functions import FUNCTIONS, signature_of
from ncclean_pipelines.recipe.model import COMMON, EngineModel, RecipeModel, StageModel
from ncclean_pipelines.registry import COMMANDS
from ncclean_pipelines.stages import STAGES
from pydantic import BaseModel

from ncclean import schema
from ncclean.options import Parameter, parameters, union_members

WIDTH = 100
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def schema_page() -> str:
    """The columns of the score table, their types, meanings and producers."""
    rows = [
        (
            f"`{column.name}`",
            str(column.type),
            column.meaning,
            "finalize" if column.name in schema.CALIBRATED_COLUMNS else "parts",
            f"`ncclean.{column.producer}`",
        )
        for column in schema.SCORE_COLUMNS
    ]
    embeddings = [(f"`{field.name}`", str(field.type)) for field in schema.EMBEDDING_METADATA]
    return TEMPLATES.get_template("schema.md").render(
        version=schema.SCHEMA_VERSION,
        scores=_table(("column", "type", "meaning", "phase", "computed by"), rows),
        dictionary=", ".join(f"`{name}`" for name in schema.DICTIONARY_COLUMNS),
        optional=_columns(schema.OPTIONAL_COLUMNS),
        embeddings=_table(("column", "type"), embeddings),
        neighbours=_columns(schema.NEIGHBOUR_COLUMNS),
        decisions=_columns(schema.DECISION_COLUMNS),
        causes=_columns(schema.CAUSE_COLUMNS),
        outcomes=_columns(schema.OUTCOME_COLUMNS),
    )


def _columns(columns: Iterable[schema.Column]) -> str:
    rows = [
        (f"`{column.name}`", str(column.type), column.meaning, f"`ncclean.{column.producer}`")
        for column in columns
    ]
    return _table(("column", "type", "meaning", "computed by"), rows)


def cli_page() -> str:
    """Usage, arguments and options of every command, as plain text."""
    return TEMPLATES.get_template("cli.md").render(
        about=app.info.help,
        options=entries("Options", [switch(info) for info in (DEBUG, VERSION)], WIDTH),
        commands=[(name, command_help(kind, WIDTH)) for name, kind in COMMANDS.items()],
    )


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def recipe_page() -> str:
    """The keys of a recipe and the options of its stages."""
    heads = ("key", "type", "default", "meaning")
    return TEMPLATES.get_template("recipe-reference.md").render(
        recipe=_table(heads, _keys(RecipeModel)),
        engine=_table(heads, _keys(EngineModel)),
        every_stage=_table(heads, _keys(StageModel)),
        stages=[
            (name, kind.makes_model, _table(("option", *heads[1:]), _stage_options(kind)))
            for name, kind in STAGES.items()
        ],
    )


def _stage_options(kind: type[Command]) -> list[tuple[str, ...]]:
    return [
        (
            f"`{name}`",
            _type_text(bool | parameter.takes if _is_inside(parameter) else parameter.takes),
            _default_text(parameter),
            _cell(parameter.option.help),
        )
        for name, parameter in parameters(kind).items()
        if parameter.option.in_recipes and name not in COMMON
    ]


def _keys(model: type[BaseModel]) -> list[tuple[str, ...]]:
    rows = []
    for attribute, field in model.model_fields.items():
        name = field.alias or attribute
        default = "" if field.default_factory is not None else str(field.default or "")
        default = "**needed**" if field.is_required() else default
        rows.append(
            (f"`{name}`", _type_text(field.annotation), default, _cell(field.description or ""))
        )
    return rows


def _is_inside(parameter: Parameter) -> bool:
    """Whether `true` stands for a place in the stage's folder."""
    return parameter.option.inside is not None and parameter.name != "out"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _type_text(kind: Any) -> str:
    """`int`, `list of str`, `int or float`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is list:
        return f"list of {_type_text(inner[0])}"
    if origin is tuple:
        return f"{len(inner)} of {_type_text(inner[0])}"
    if origin in (dict, Mapping):
        return "mapping"
    if inner:
        return " or ".join(_type_text(part) for part in inner if part is not NoneType)
    return "mapping" if issubclass(kind, BaseModel) else str(kind.__name__)


def _default_text(parameter: Parameter) -> str:
    value = parameter.default
    if parameter.name == "out" or not parameter.option.shows_default:
        return ""
    if parameter.is_required:
        return "**needed**"
    if value in (None, (), [], {}) or value is False:
        return ""
    if value is True:
        return "true"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else f"{value}"


_STUB_HEAD = """\
# Made by docs/generate.py; edit that instead.
# The commands as functions, for editors and type checkers; see ncclean_pipelines.functions.
# ruff: noqa
# fmt: off
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ncclean_pipelines.command import Result as Result
from ncclean_pipelines.progress import Progress, Report

_Progress = Progress | Callable[[Report], object] | None

__version__: str
__all__: list[str]

def evaluate(task: str, *inputs: Any, **options: Any) -> Result[Any]: ...
"""


def stub() -> str:
    """`ncclean/__init__.pyi`: a function for each command."""
    return _STUB_HEAD + "".join(_stub_function(name, kind) for name, kind in FUNCTIONS.items())


def _stub_function(name: str, kind: type[Command]) -> str:
    lines, is_keyword = [], False
    for given in signature_of(kind).parameters.values():
        if given.kind is given.KEYWORD_ONLY and not is_keyword:
            lines.append("    *,")
            is_keyword = True
        text = "_Progress" if given.name == "progress" else _source_type(given.annotation)
        is_plain = isinstance(given.default, (str, int, float, NoneType))
        default = (
            f" = {given.default!r}" if is_plain and given.name != "decode_threads" else " = ..."
        )
        default = "" if given.default is given.empty else default
        lines.append(f"    {given.name}: {text}{default},")
    summary = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    body = "\n".join(lines)
    return f'def {name}(\n{body}\n) -> Result[Any]:\n    """{" ".join(summary.split())}"""\n'


def _source_type(kind: Any) -> str:
    """As Python source; a list may be given as one value."""
    parts = []
    for member in union_members(kind):
        text = inspect.formatannotation(member).replace("typing.", "")
        text = text.replace("collections.abc.", "")
        if text.startswith("list["):
            text = f"{text[5:-1]} | Sequence[{text[5:-1]}]"
        parts.append("None" if member is NoneType else text)
    return " | ".join(parts)


PAGES = {"schema.md": schema_page, "cli.md": cli_page, "recipe-reference.md": recipe_page}
STUB = Path(__file__).parent.parent / "ncclean" / "__init__.pyi"


def main() -> None:
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
