"""Are the inputs of a recipe there, and do the tables have the columns that stages ask for?

Both before anything is started: a mistake in the last stage must not show after days of scoring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ncclean import schema, stores
from ncclean.data.shards import resolve_shards
from ncclean.errors import InputError, ModelError
from ncclean.models.checkpoint import resolve as resolve_model
from ncclean.selection.policy import identifier
from ncclean.storage.tables import table_files

from ..evaluate_model import DEFAULT_PRETRAINED
from .commands import LOCAL_MODEL, Command, Reads
from .load import Recipe, Stage
from .references import RUN, names_in

# Columns that options name, and the options that name the tables they must be in.
_TABLES_OF = {
    "select": (("score", "weights"), ("scores", "dedup")),
    "evaluate noise": (("column", "lower_is_noisier", "threshold"), ("scores", "join")),
    "export": (("columns",), ("scores",)),
}
# Options that are SQL over those columns.
_SQL_OF = {"select": "where", "evaluate noise": "rule"}


def check_inputs(recipe: Recipe) -> None:
    """Raise `RecipeError`, with the line, for an input that is not there."""
    for stage in recipe.stages.values():
        for option, kind, value in inputs_of(stage):
            try:
                _check_there(kind, value, stage)
            except (InputError, ModelError) as error:
                raise recipe.source.error(("stages", stage.name, option), str(error)) from error


def check_columns(recipe: Recipe, *, look: bool = True) -> None:
    """Raise `RecipeError`, with the line, for a column that no stage produces.

    Tables from outside are asked for their columns, unless `look` is false; then what is read
    from them is not checked.
    """
    for stage in recipe.stages.values():
        named, tables = _TABLES_OF.get(stage.command.name, ((), ()))
        if not any(stage.values.get(table) for table in tables):
            continue
        columns = _columns(recipe, stage, tables, look)
        if columns is None:
            continue
        for option in named:
            for column in _listed(stage.values.get(option)):
                if column not in columns:
                    raise recipe.source.error(
                        ("stages", stage.name, option),
                        f"no stage before {stage.name!r} produces the column {column!r}",
                    )
        option = _SQL_OF.get(stage.command.name, "")
        for sql in _listed(stage.values.get(option)):
            _check_sql(recipe, stage, option, sql, columns)


def inputs_of(stage: Stage) -> Iterator[tuple[str, Reads, str]]:
    """The inputs from outside: option, what it is, and the path or name."""
    for option, kind in stage.command.reads.items():
        written = _listed(stage.symbolic.get(option))
        values = _listed(stage.values.get(option, _default(stage.command, option)))
        if len(written) != len(values):  # a default, or a list that a reference stands for
            written = values if not names_in(stage.symbolic.get(option)) else []
        for text, value in zip(written, values, strict=False):
            if not names_in(text):
                yield option, kind, str(value)


def _check_there(kind: Reads, value: str, stage: Stage) -> None:
    if kind is Reads.SHARDS:
        resolve_shards([value])
    elif kind is Reads.TABLE:
        table_files([value])
    elif kind is Reads.WEIGHTS:
        return  # a tag or a file: looked at with the model
    elif kind is Reads.MODEL:
        given = stage.values.get("pretrained") or _default(stage.command, "pretrained")
        tags = _listed(given or DEFAULT_PRETRAINED)
        named = _listed(stage.values.get("model", _default(stage.command, "model")))
        pretrained = tags[named.index(value)] if len(tags) > 1 and value in named else tags[-1]
        if value.startswith(LOCAL_MODEL) or "/" not in value:
            resolve_model(value, pretrained)
        elif not value.startswith("hf-hub:") and not Path(value).exists():
            raise InputError(f"{value} does not exist")
    elif not stores.is_url(value) and not Path(value).exists():
        raise InputError(f"{value} does not exist")


def _default(command: Command, option: str) -> Any:
    known = command.options.get(option)
    return None if known is None or known.is_required else known.default


def _columns(
    recipe: Recipe, stage: Stage, tables: tuple[str, ...], look: bool
) -> dict[str, pa.DataType] | None:
    """The columns of the tables that a stage reads, with types; None if one cannot be known."""
    found: dict[str, pa.DataType] = {}
    for option in tables:
        for text in _listed(stage.symbolic.get(option)):
            for name in names_in(text):
                maker = recipe.stages.get(name.split(".")[0])
                if maker is None or maker.command.columns is None or name == RUN:
                    return None
                found |= {column: _TYPES.get(column, pa.string()) for column in
                          maker.command.columns}  # fmt: skip
            if not names_in(text):
                if not look:
                    return None
                found |= _columns_of(str(text))
    return found


def _columns_of(path: str) -> dict[str, pa.DataType]:
    place = stores.location(table_files([path])[0])
    with place.open("rb") as file:
        return {each.name: each.type for each in pq.read_schema(file)}


def _check_sql(
    recipe: Recipe, stage: Stage, option: str, sql: str, columns: Mapping[str, pa.DataType]
) -> None:
    """DuckDB knows best what a condition refers to: it is asked about a table without rows."""
    connection = duckdb.connect()
    try:
        empty = pa.schema(list(columns.items())).empty_table()
        connection.register("scores", empty)
        connection.execute(f"SELECT {', '.join(map(identifier, columns))} FROM scores WHERE {sql}")
    except duckdb.Error as error:
        sentence = f"{option}: {str(error).splitlines()[0]}"
        raise recipe.source.error(("stages", stage.name, option), sentence) from error
    finally:
        connection.close()


def _listed(value: Any) -> list[Any]:
    """The value or values of an option; of a mapping, its keys."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    return list(value)


_TYPES: dict[str, pa.DataType] = {
    each.name: each.type for each in (*schema.NEIGHBOUR_COLUMNS, *schema.SCORE_COLUMNS)
}
