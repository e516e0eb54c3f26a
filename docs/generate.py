"""Write the generated pages: `schema.md` from the Arrow schema, `cli.md` from the commands,
`recipe-reference.md` from the models of recipes; and `pipelines/api.py`, the commands as functions.

    python docs/generate.py

tests/test_docs.py fails when a page is not what this script makes.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer
from ncclean_cli.app import app
from ncclean_pipelines.recipe.commands import COMMANDS
from ncclean_pipelines.recipe.meanings import MEANINGS
from ncclean_pipelines.recipe.model import (
    COMMON,
    EngineModel,
    RecipeModel,
    StageModel,
    stage_model,
)
from pydantic import BaseModel

from ncclean import schema

WIDTH = 100
_TYPE_NAMES = {str: "TEXT", int: "INT", float: "FLOAT", Path: "PATH", bool: ""}
_NO_BREAK = "\N{NO-BREAK SPACE}"
_MADE_BY = "<!-- Made by docs/generate.py; edit that instead. -->"

_SCHEMA_INTRODUCTION = """\
# Schema

The score table has these columns, in this order. `ncclean.schema` defines them; nothing else does.
The schema version is {version}.

Every input sample has exactly one row, in input order. Columns from `similarity` to `block` are
null where `status` is not `ok`. What each score means and when to use it: [Scores](scores.md).

*Phase* tells when a column is filled. `parts` columns need the model and depend on one shard.
`finalize` columns depend on the whole corpus and can be computed again without the model.
"""

_SCHEMA_METADATA = """\
## File metadata

The Parquet key-value metadata of each final file records how it was made. All values are strings.

| key | meaning |
|---|---|
| `model`, `pretrained` | the model as named on the command line, and its tag |
| `weights_fingerprint` | hash over the names, shapes and bytes of all weights |
| `precision` | precision of the towers, after `auto` was resolved |
| `block_size`, `forget_percent`, `seed`, `text`, `caption_key` | the options of these names; \
`caption_key` only if given |
| `shift`, `shift_source` | boundary of OSA as a number, and where it came from: `noise`, \
`shuffled` or `given` |
| `noise_rate`, `noise_rate_low`, `noise_rate_high` | estimated share of mismatched pairs and its \
95 % interval; `nan` where it could not be estimated |
| `ncclean_version`, `schema_version` | versions of ncclean and of this schema |

Compression is zstd. Row groups hold about 100,000 rows. {dictionary} are dictionary-encoded.
"""

_EMBEDDINGS = """\
## Embeddings

`--embeddings DIR` also writes, for each shard with number `i` in the list of shards:

- `img_emb/img_emb_<i>.npy` and `text_emb/text_emb_<i>.npy`: float16 `(n, d)`, L2-normalised, one
  row for each pair with status `ok`;
- `metadata/metadata_<i>.parquet`: which pair each row belongs to, with the columns below.

This is the layout of clip-retrieval.
"""

_NEIGHBOURS = """\
## Neighbours

The table that `ncclean neighbours` writes, one row for each embedded pair: what its columns mean
and when to use them, [Neighbours](neighbours.md). Its file metadata has the index, the recalls
measured, thresholds, seed and versions.
"""

_OUTCOMES = """\
## Outcomes

The table that `ncclean evaluate zeroshot`, `retrieval` and `linear-probe` write beside each result:
a row for each image or caption that was looked up. `evaluate compare` resamples it
([Evaluation](evaluation.md)).
"""

_CLI_INTRODUCTION = """\
# Commands

The same text, for the installed version: `ncclean COMMAND --help`. Results go to stdout, progress
and messages to stderr. Exit codes: [Input and runs](input.md#exit-codes).
"""


_RECIPE_INTRODUCTION = """\
# Recipe reference

The keys of a recipe and the options of its stages; how they fit together: [Recipes](recipes.md).
Where an option takes a list, one value will do. `out` may be left out everywhere. `--overwrite`
and `--resume` are decided by the run.
"""


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
    neighbours = [
        (f"`{column.name}`", str(column.type), column.meaning, f"`ncclean.{column.producer}`")
        for column in schema.NEIGHBOUR_COLUMNS
    ]
    outcomes = [
        (f"`{column.name}`", str(column.type), column.meaning, f"`ncclean.{column.producer}`")
        for column in schema.OUTCOME_COLUMNS
    ]
    dictionary = ", ".join(f"`{name}`" for name in schema.DICTIONARY_COLUMNS)
    return _page(
        _SCHEMA_INTRODUCTION.format(version=schema.SCHEMA_VERSION),
        _table(("column", "type", "meaning", "phase", "computed by"), rows),
        _SCHEMA_METADATA.format(dictionary=dictionary),
        _EMBEDDINGS,
        _table(("column", "type"), _fields(schema.EMBEDDING_METADATA)),
        _NEIGHBOURS,
        _table(("column", "type", "meaning", "computed by"), neighbours),
        _OUTCOMES,
        _table(("column", "type", "meaning", "computed by"), outcomes),
    )


def cli_page() -> str:
    """Usage, arguments and options of every command, as plain text."""
    group: Any = typer.main.get_command(app)
    callbacks = _callbacks(app)
    sections = [
        f"## ncclean {name}\n\n```text\n{command_help(command, name, callbacks[name])}\n```\n"
        for name, command in _commands(group)
    ]
    common = app.registered_callback.callback if app.registered_callback else None
    options = _entries([p for p in group.params if not p.hidden], common)
    about = f"{group.help}\n\n```text\nUsage: ncclean [OPTIONS] COMMAND ...\n\n{options}\n```\n"
    return _page(_CLI_INTRODUCTION, about, *sections)


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its full name; a group such as `evaluate` gives those in it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def _callbacks(group: typer.Typer, prefix: str = "") -> dict[str, Callable[..., Any] | None]:
    """The functions behind `_commands`, by full name."""
    found = {prefix + _name(info): info.callback for info in group.registered_commands}
    for info in group.registered_groups:
        if info.typer_instance is not None:
            name = info.name or info.typer_instance.info.name
            found |= _callbacks(info.typer_instance, f"{prefix}{name} ")
    return found


def command_help(command: Any, name: str, callback: Callable[..., Any] | None) -> str:
    """The help of one command at a fixed width, whatever the version of Typer would print."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    places = " ".join(_place(argument) for argument in arguments)
    usage = f"Usage: ncclean {name} [OPTIONS] {places}".rstrip()
    paragraphs = inspect.cleandoc(command.help or "").replace("`", "").split("\n\n")
    indent = "  "
    text = "\n\n".join(
        textwrap.fill(" ".join(p.split()), WIDTH, initial_indent=indent, subsequent_indent=indent)
        for p in paragraphs
    )
    blocks = [usage, text]
    if arguments:
        blocks.append(_entries(arguments, callback, "Arguments"))
    blocks.append(_entries(options, callback))
    return "\n\n".join(blocks)


def _entries(
    parameters: list[Any], callback: Callable[..., Any] | None, title: str = "Options"
) -> str:
    hints = typing.get_type_hints(callback, include_extras=True) if callback else {}
    left = [_label(parameter, hints.get(parameter.name)) for parameter in parameters]
    column = max(map(len, left)) + 4
    lines = [f"{title}:"]
    for label, parameter in zip(left, parameters, strict=True):
        text = textwrap.wrap(_meaning(parameter, hints.get(parameter.name)), WIDTH - column)
        lines.append(f"  {label}".ljust(column) + text[0])
        lines += [" " * column + line for line in text[1:]]
    return "\n".join(lines).replace(_NO_BREAK, " ")


def _label(parameter: Any, hint: Any) -> str:
    if parameter.param_type_name == "argument":
        return _place(parameter).strip("[]")
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    return f"{names} {parameter.metavar or _type_name(hint)}".rstrip()


def _place(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _meaning(parameter: Any, hint: Any) -> str:
    facts = []
    for info in getattr(hint, "__metadata__", ()):
        low, high = getattr(info, "min", None), getattr(info, "max", None)
        if low is not None:
            facts.append(f"at least {low}" if high is None else f"{low} to {high}")
    if parameter.required:
        facts.append("required")
    # Switches and options without a default say in words what happens without them.
    if isinstance(parameter.default, (str, int, float)) and not isinstance(parameter.default, bool):
        facts.append(f"default: {parameter.default}")
    brackets = "".join(f" [{fact.replace(' ', _NO_BREAK)}]" for fact in facts)
    return (parameter.help or "").replace("`", "") + brackets


def _type_name(hint: Any) -> str:
    """TEXT for `str`, `Annotated[str, ...]`, `str | None` and so on."""
    inner = [hint]
    while inner:
        kind = inner.pop(0)
        if kind in _TYPE_NAMES:
            return _TYPE_NAMES[kind]
        inner += [part for part in typing.get_args(kind) if part is not type(None)]
    return "TEXT"


def _name(info: Any) -> str:
    return str(info.name or info.callback.__name__.replace("_", "-"))


def _fields(fields: pa.Schema) -> list[tuple[str, ...]]:
    return [(f"`{field.name}`", str(field.type)) for field in fields]


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _page(*sections: str) -> str:
    return "\n".join((_MADE_BY, *sections))


def recipe_page() -> str:
    """The keys of a recipe and the options of its stages, from the pydantic models."""
    commands = dict(_commands(typer.main.get_command(app)))
    sections = [
        _RECIPE_INTRODUCTION,
        _table(("key", "type", "default", "meaning"), _keys(RecipeModel)),
        "## engine\n",
        _table(("key", "type", "default", "meaning"), _keys(EngineModel)),
        "## Every stage\n",
        _table(("key", "type", "default", "meaning"), _keys(StageModel)),
    ]
    for name, command in COMMANDS.items():
        helps = {p.name.rstrip("_"): p.help or "" for p in commands[name].params}
        helps |= {each.name: _recipe_meaning(name, each.name, helps) for each in
                  command.options.values()}  # fmt: skip
        rows = [row for row in _keys(stage_model(name), helps) if row[0].strip("`") not in COMMON]
        reads = f"What it makes is the model `{command.reference('OUT')}`.\n"
        sections.append(f"## {name}\n\n{reads if command.makes_model else ''}")
        sections.append(_table(("option", "type", "default", "meaning"), rows))
    return _page(*sections)


def _recipe_meaning(command: str, option: str, helps: dict[str, str]) -> str:
    names = {("select", "scores"): "paths", ("report", "scores"): "paths"}
    known = helps.get(names.get((command, option), option))
    return known or MEANINGS.get((command, option), "")


def _keys(model: Any, helps: dict[str, str] | None = None) -> list[tuple[str, ...]]:
    rows = []
    for name, field in model.model_fields.items():
        meaning = (helps or {}).get(name) or field.description or ""
        rows.append((f"`{name}`", _type_text(field.annotation), _default_text(field),
                     " ".join(meaning.replace("|", "\\|").split())))  # fmt: skip
    return rows


def _type_text(kind: Any) -> str:
    """`int`, `list of str`, `int or none`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type_text(inner[0])
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (list, Sequence):
        return f"list of {_type_text(inner[0])}"
    if origin is tuple:
        return f"{len(inner)} of {_type_text(inner[0])}"
    if origin in (dict, Mapping):
        return "mapping"
    if inner:
        return " or ".join(_type_text(part) for part in inner if part is not type(None))
    return "mapping" if issubclass(kind, BaseModel) else str(kind.__name__)


def _default_text(field: Any) -> str:
    if field.is_required():
        return "**needed**"
    value = field.default
    if field.default_factory is not None or value in (None, (), [], {}) or value is False:
        return ""
    if value is True:
        return "true"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else f"{value}"


# `ncclean.report` is a package already.
_FUNCTIONS = {"report": "write_report"}
_API_HEAD = """\
# Made by docs/generate.py; edit that instead.
\"\"\"Every command as a typed function: `ncclean.score(...)`, `ncclean.select(...)` and so on.

Each takes the options of its command by the same names, and returns a `Result`.
\"\"\"

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ncclean.errors import InputError

from .calls import Result, call
from .recipe.bundled import find_recipe
from .recipe.load import load_recipe
from .recipe.run import RunSummary
from .recipe.run import run as run_recipe

__all__ = {names}


def run(
    recipe: str, out: str, set: Sequence[str] = (), start_from: str | None = None
) -> RunSummary:
    \"\"\"Run a recipe, a file or a bundled one; `set` holds `KEY=VALUE` texts.\"\"\"
    return run_recipe(load_recipe(find_recipe(recipe), Path(out), list(set)), None, start_from)


Task = Literal["noise", "zeroshot", "retrieval", "linear-probe", "compare", "similarity"]


def evaluate(task: Task, *inputs: Any, **options: Any) -> Result:
    \"\"\"`ncclean evaluate TASK`, with what the function `evaluate_...` of the task takes.\"\"\"
    tasks: Mapping[str, Callable[..., Result]] = {
        name.removeprefix("evaluate_").replace("_", "-"): function
        for name, function in globals().items()
        if name.startswith("evaluate_")
    }
    if task not in tasks:
        raise InputError(f"evaluate takes {', '.join(sorted(tasks))}, got {task!r}")
    return tasks[task](*inputs, **options)
"""


def api_module() -> str:
    """Source of `ncclean_pipelines.api`: a function for each command that can be a stage."""
    names, functions = [], []
    for name, command in COMMANDS.items():
        function = _FUNCTIONS.get(name, name.replace(" ", "_").replace("-", "_"))
        options = sorted(
            (_optional_out(name, each) for each in command.options.values()),
            key=lambda each: not each.is_required,
        )
        flags = [p.name for p in dict(_commands(typer.main.get_command(app)))[name].params]
        lines = [f"    {o.name}: {_source_type(o)}{_source_default(o)}," for o in options]
        needed = sum(option.is_required for option in options)
        lines.insert(needed, "    *,")
        lines += [f"    {flag}: bool = False," for flag in ("overwrite", "resume") if flag in flags]
        help_text = (dict(_commands(typer.main.get_command(app)))[name].help or "").split("\n\n")[0]
        functions.append(
            f"def {function}(\n" + "\n".join(lines) + "\n) -> Result:\n"
            f'    """{" ".join(help_text.split())}"""\n    return call("{name}", locals())\n'
        )
        names.append(function)
    listed = repr(sorted([*names, "evaluate", "run", "Result", "RunSummary"])).replace("'", '"')
    return _API_HEAD.replace("{names}", listed) + "\n\n" + "\n\n".join(functions)


def _optional_out(command: str, option: Any) -> Any:
    """An evaluation need not write its result: it is in the `Result`."""
    if option.name != "out" or not command.startswith("evaluate "):
        return option
    return dataclasses.replace(option, takes=str | None, default=None)


def _source_type(option: Any) -> str:
    if option.name == "decode_threads":
        return "int | None"
    text = inspect.formatannotation(option.takes).replace("typing.", "")
    text = text.replace("collections.abc.", "")
    if text.startswith("list["):
        return f"{text[5:-1]} | Sequence[{text[5:-1]}]"
    return text


def _source_default(option: Any) -> str:
    if option.name == "decode_threads":
        return " = None"  # one per core
    return "" if option.is_required else f" = {option.default!r}"


PAGES = {"schema.md": schema_page, "cli.md": cli_page, "recipe-reference.md": recipe_page}


# The one module that is made here, beside the pages.
API = Path(__file__).parent.parent / "pipelines" / "api.py"


def main() -> None:
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")
    API.write_text(api_module(), encoding="utf-8")


if __name__ == "__main__":
    main()
