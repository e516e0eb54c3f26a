"""Write the generated pages: `schema.md` from the Arrow schema, `cli.md` from the declarations of
the commands; and `ncclean/__init__.pyi`, the commands as functions. The prose of the pages is in
docs/templates.

    python docs/generate.py

tests/test_docs.py fails when a page is not what this script makes.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import pyarrow as pa
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from ncclean_cli.app import DEBUG, VERSION, app
from ncclean_cli.command_help import about, entries, label, meaning, switch
from ncclean_cli.parameters import JSON, QUIET
from ncclean_pipelines.command import Command
from ncclean_pipelines.functions import FUNCTIONS, signature_of
from ncclean_pipelines.registry import COMMANDS

from ncclean.base import schema
from ncclean.base.options import Parameter, Reads, parameters, union_members

Entry = tuple[str, str]  # the label of an option and its meaning

WIDTH = 100
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def schema_page() -> str:
    """The columns of all tables, their types and meanings."""
    return TEMPLATES.get_template("schema.md").render(
        version=schema.SCHEMA_VERSION,
        scores=_columns(schema.SCORE_COLUMNS),
        calibrated=_names(
            column.name
            for column in schema.SCORE_COLUMNS
            if column.name in schema.CALIBRATED_COLUMNS
        ),
        words=_typed((schema.CANONICAL, *schema.WORD_COLUMNS)),
        parts=_typed(schema.PART_COLUMNS),
        embeddings=_names(field.name for field in schema.EMBEDDING_METADATA),
        neighbours=_typed(schema.NEIGHBOUR_COLUMNS),
        decisions=_typed(schema.DECISION_COLUMNS),
        causes=_typed(schema.CAUSE_COLUMNS),
        outcomes=_typed(schema.OUTCOME_COLUMNS),
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _typed(columns: Iterable[schema.Column]) -> str:
    """Names, with a type after each run of columns that have it."""
    runs = itertools.groupby(columns, key=lambda column: column.type)
    return ", ".join(f"{_names(c.name for c in run)} ({_type(kind)})" for kind, run in runs)


def _type(kind: pa.DataType) -> str:
    """Without angle brackets, which are tags on a page."""
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"struct of {_names(field.name for field in kind)}"
    return str(kind)


def _columns(columns: Iterable[schema.Column]) -> str:
    return "\n".join(f"- `{c.name}` ({_type(c.type)}): {c.meaning}" for c in columns)


# Shared options that a command's section names together, if the command has all of them.
_GROUPS = {
    "Images": ("--image-root", "--class-template", "--split..."),
    "Models": ("--precision", "--device", "--decode-threads"),
    "Evaluated models": ("--pretrained...", "--preprocess TAG...", "--space", "--batch-size"),
    "Scoring": ("--calibrate-by SQL", "--signals", "--words", "--caption-parts"),
    "Tables": ("--join...", "--memory-limit"),
    "Judges": ("--judge-answers", "--judge-column"),
    "Ray": ("--engine", "--ray-address"),
}


def cli_page() -> str:
    """Usage and options of every command; what several have in common stands at the end."""
    described = {
        name: {(_label(p), meaning(p, brief=True)): p for p in parameters(kind).values()}
        for name, kind in COMMANDS.items()
    }
    users: dict[Entry, list[str]] = {}
    for name, found in described.items():
        for entry in found:
            users.setdefault(entry, []).append(name)
    # Of several meanings of one label, the most frequent is the shared one.
    shared: dict[tuple[str, str], Entry] = {}
    for entry in sorted(users, key=lambda entry: len(users[entry])):
        is_inner = all(name.startswith("evaluate ") for name in users[entry])
        if len(users[entry]) > 1 and entry[0] != "--out":
            shared["evaluate" if is_inner else "", entry[0]] = entry
    most = {entry for entry in shared.values() if 2 * len(users[entry]) > len(COMMANDS)}
    blocks = {
        title: {entry for entry in shared.values() if entry[0] in labels}
        for title, labels in _GROUPS.items()
    }
    grouped = most.union(*blocks.values())
    for title, place in (("Others", ""), ("Others, of evaluate", "evaluate")):
        blocks[title] = {
            entry for (inner, _), entry in shared.items() if inner == place and entry not in grouped
        }
    return TEMPLATES.get_template("cli.md").render(
        about=app.info.help,
        options=entries("Options", [switch(info) for info in (DEBUG, VERSION)], WIDTH),
        every=entries("Every command", [switch(info) for info in (JSON, QUIET)], WIDTH),
        most=_block("Most commands", most),
        commands=[
            (name, *_command(name, found, set(shared.values()), most, blocks))
            for name, found in described.items()
        ],
        shared=[_block(title, found) for title, found in blocks.items()],
    )


def _label(parameter: Parameter) -> str:
    return label(parameter, brief=True).removeprefix("-o, ")


def _block(title: str, described: Iterable[Entry]) -> str:
    return entries(title, sorted(described, key=lambda entry: entry[0].lstrip("-")), WIDTH)


def _command(
    name: str,
    described: Mapping[Entry, Parameter],
    shared: set[Entry],
    most: set[Entry],
    groups: Mapping[str, set[Entry]],
) -> tuple[str, str, str, str, list[str]]:
    """What a command does, its example, its options, those for experiments and the shared ones."""
    own = {entry: parameter for entry, parameter in described.items() if entry not in shared}
    listed = [entry for entry, parameter in own.items() if parameter.option.is_listed]
    listed.sort(key=lambda entry: not own[entry].option.argument)
    unlisted = [entry for entry in own if entry not in listed]
    complete = [title for title in _GROUPS if groups[title] <= described.keys()]
    named = most.union(*(groups[title] for title in complete))
    names = complete + [
        f"`{p.option.metavar if p.option.argument else p.flag}`"
        for entry, p in described.items()
        if entry in shared and entry not in named
    ]
    first, example = about(COMMANDS[name], WIDTH, brief=True).split("\n\n")
    return (
        " ".join(first.split()),
        " ".join(example.split()).removeprefix("Example: "),
        _by_method(listed, own),
        _by_method(unlisted, own),
        names,
    )


def _by_method(listed: Iterable[Entry], own: Mapping[Entry, Parameter]) -> str:
    """The entries, below a heading for each method of `finetune` that reads them."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in listed:
        groups.setdefault(own[entry].option.methods, []).append(entry)
    return "\n\n".join(
        entries(f"Options of {', '.join(methods)}", groups[methods], WIDTH).removeprefix(
            "Options of :\n"
        )
        for methods in sorted(groups, key=bool)
    )


_STUB_HEAD = """\
# Made by docs/generate.py; edit that instead.
# The commands as functions, for editors and type checkers; see ncclean_pipelines.functions.
# ruff: noqa
# fmt: off
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ncclean import webdataset as webdataset
from ncclean_pipelines.command import Result as Result
from ncclean_pipelines.progress import Progress, Report
{imports}

_Progress = Progress | Callable[[Report], object] | None
_Path = str | PathLike[str]
_Pairs = Iterable[Any]  # a datasets.Dataset, a data frame, (image, caption)

__version__: str
__all__: list[str]

def evaluate(task: str, *inputs: Any, **options: Any) -> Result[Any]: ...
"""


def stub() -> str:
    """`ncclean/__init__.pyi`: a function for each command."""
    functions, imports = [], set()
    for name, kind in FUNCTIONS.items():
        result, *others = kind.run.__annotations__["return"].split(" | ")
        imports |= set(_imports(kind, result))
        if others:  # such as the plan of `dry_run`
            result = f"{result.removesuffix(']')} | Any]"
        functions.append(_stub_function(name, kind, result))
    return _STUB_HEAD.format(imports="\n".join(sorted(imports))) + "".join(functions)


def _imports(kind: type[Command], annotation: str) -> Iterable[str]:
    """Import the classes of an annotation from where the module of a command has them."""
    module = sys.modules[kind.__module__]
    wanted = set(re.findall(r"\w+", annotation)) - {"Result", "Any"}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ClassDef) and node.name in wanted:
            yield f"from {module.__name__} import {node.name}"
        if isinstance(node, ast.ImportFrom):
            source = f"{module.__package__}." * bool(node.level) + (node.module or "")
            names = {alias.name for alias in node.names} & wanted
            yield from (f"from {source} import {name}" for name in names)


def _stub_function(name: str, kind: type[Command], result: str) -> str:
    lines, is_keyword = [], False
    for given in signature_of(kind).parameters.values():
        if given.kind is given.KEYWORD_ONLY and not is_keyword:
            lines.append("    *,")
            is_keyword = True
        text = "_Progress" if given.name == "progress" else _type_of(kind, given)
        is_plain = isinstance(given.default, (str, int, float, NoneType))
        default = (
            f" = {given.default!r}" if is_plain and given.name != "decode_threads" else " = ..."
        )
        default = "" if given.default is given.empty else default
        lines.append(f"    {given.name}: {text}{default},")
    summary = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    body = "\n".join(lines)
    return f'def {name}(\n{body}\n) -> {result}:\n    """{" ".join(summary.split())}"""\n'


def _type_of(kind: type[Command], given: inspect.Parameter) -> str:
    """The type of an argument: paths may be `os.PathLike`, and sources objects with pairs."""
    text, option = _source_type(given.annotation), parameters(kind)[given.name].option
    is_path = option.reads not in (None, Reads.FUNCTION)
    if is_path or option.inside is not None or given.name == "out":
        text = re.sub(r"\bstr\b", "_Path", text)
    return f"{text} | _Pairs" if option.reads in (Reads.SHARDS, Reads.SOURCE) else text


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


PAGES = {"schema.md": schema_page, "cli.md": cli_page}
STUB = Path(__file__).parent.parent / "ncclean" / "__init__.pyi"


def main() -> None:
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
