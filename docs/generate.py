"""Write the generated pages: `schema.md` from the Arrow schema, `cli.md` and `recipe-reference.md`
from the declarations of the commands; and `ncclean/__init__.pyi`, the commands as functions.

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

import pyarrow as pa
from ncclean_cli.app import DEBUG, VERSION, app
from ncclean_cli.command_help import command_help, entries, switch
from ncclean_pipelines.command import Command
from ncclean_pipelines.functions import FUNCTIONS, signature_of
from ncclean_pipelines.recipe.model import COMMON, EngineModel, RecipeModel, StageModel
from ncclean_pipelines.registry import COMMANDS, STAGES
from pydantic import BaseModel

from ncclean import schema
from ncclean.options import Parameter, parameters, union_members

WIDTH = 100
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
| `osa_function` | shape of `osa_weight` above it: `high_degree`, `linear` or `cosine` |
| `noise_rate`, `noise_rate_low`, `noise_rate_high` | estimated share of mismatched pairs and its \
95 % interval; `nan` where it could not be estimated |
| `calibrated_on` | the score that the noise rate and `noise_probability` are of: `similarity` or \
`neg_clip_loss` |
| `separation` | how often a matched pair has a higher score than a mismatched one, by the same \
estimate: what the estimator can tell |
| `audited` | only after `--calibrate-with` or `audit --apply`: the map of the noise \
probability, the measured noise rate, and by how many answers |
| `near_miss_rate`, `near_miss_rate_low`, `near_miss_rate_high` | with `--words`: the share \
of captions with a wrong word, of those that are not mismatched, and its 95 % interval |
| `ncclean_version`, `schema_version` | versions of ncclean and of this schema |

Compression is zstd. Row groups hold about 100,000 rows. {dictionary} are dictionary-encoded.
"""

_OPTIONAL = """\

## Columns of options

A table that was scored with `--canonical` or `--words` has these columns too:
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
    dictionary = ", ".join(f"`{name}`" for name in schema.DICTIONARY_COLUMNS)
    return _page(
        _SCHEMA_INTRODUCTION.format(version=schema.SCHEMA_VERSION),
        _table(("column", "type", "meaning", "phase", "computed by"), rows),
        _SCHEMA_METADATA.format(dictionary=dictionary),
        _OPTIONAL,
        _columns(schema.OPTIONAL_COLUMNS),
        _EMBEDDINGS,
        _table(("column", "type"), _fields(schema.EMBEDDING_METADATA)),
        _NEIGHBOURS,
        _columns(schema.NEIGHBOUR_COLUMNS),
        _OUTCOMES,
        _columns(schema.OUTCOME_COLUMNS),
    )


def _columns(columns: Iterable[schema.Column]) -> str:
    rows = [
        (f"`{column.name}`", str(column.type), column.meaning, f"`ncclean.{column.producer}`")
        for column in columns
    ]
    return _table(("column", "type", "meaning", "computed by"), rows)


def cli_page() -> str:
    """Usage, arguments and options of every command, as plain text."""
    sections = [
        f"## ncclean {name}\n\n```text\n{command_help(kind, WIDTH)}\n```\n"
        for name, kind in COMMANDS.items()
    ]
    options = entries("Options", [switch(info) for info in (DEBUG, VERSION)], WIDTH)
    usage = "Usage: ncclean [OPTIONS] COMMAND ..."
    about = f"{app.info.help}\n\n```text\n{usage}\n\n{options}\n```\n"
    return _page(_CLI_INTRODUCTION, about, *sections)


def _fields(fields: pa.Schema) -> list[tuple[str, ...]]:
    return [(f"`{field.name}`", str(field.type)) for field in fields]


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _page(*sections: str) -> str:
    return "\n".join((_MADE_BY, *sections))


def recipe_page() -> str:
    """The keys of a recipe and the options of its stages."""
    heads = ("key", "type", "default", "meaning")
    sections = [_RECIPE_INTRODUCTION, _table(heads, _keys(RecipeModel))]
    for title, model in (("engine", EngineModel), ("Every stage", StageModel)):
        sections += [f"## {title}\n", _table(heads, _keys(model))]
    for name, kind in STAGES.items():
        makes = "What it makes is the model `local-dir:OUT`.\n" if kind.makes_model else ""
        sections.append(f"## {name}\n\n{makes}")
        sections.append(_table(("option", *heads[1:]), _stage_options(kind)))
    return _page(*sections)


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
    return [
        (
            f"`{name}`",
            _type_text(field.annotation),
            "**needed**" if field.is_required() else str(field.default or ""),
            _cell(field.description or ""),
        )
        if field.default_factory is None
        else (f"`{name}`", _type_text(field.annotation), "", _cell(field.description or ""))
        for name, field in model.model_fields.items()
    ]


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
