"""Are the inputs of a recipe there, and do the tables have the columns that stages ask for?

Both before anything is started: a mistake in the last stage must not show after days of scoring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ncclean import schema, stores
from ncclean.errors import InputError, ModelError
from ncclean.options import Parameter, Reads, parameters, value_of
from ncclean.selection.policy import identifier
from ncclean.storage.tables import table_files

from ..command import listed
from ..inputs import DEFAULT_PRETRAINED, check_there
from .load import Recipe, Stage
from .references import RUN, names_in

Columns = Mapping[str, pa.DataType]


def check_inputs(recipe: Recipe) -> None:
    """Raise `RecipeError`, with the line, for an input that is not there."""
    for stage in recipe.stages.values():
        for option, reads, value in inputs_of(stage):
            try:
                check_there(reads, value, _tag_of(stage, value))
            except (InputError, ModelError) as error:
                raise recipe.source.error(("stages", stage.name, option), str(error)) from error


def check_columns(recipe: Recipe, *, look: bool = True) -> None:
    """Raise `RecipeError`, with the line, for a column that no stage produces.

    Tables from outside are asked for their columns, unless `look` is false; then what is read
    from them is not checked.
    """
    for stage in recipe.stages.values():
        for name, parameter in parameters(type(stage.command)).items():
            tables = parameter.option.columns_of or parameter.option.sql_over
            if not tables or stage.values.get(name) is None:
                continue
            named = listed(stage.values[name])
            if not any(stage.values.get(table) for table in tables):
                continue
            columns = _columns(recipe, stage, tables, look)
            if columns is not None:
                _check_named(recipe, stage, parameter, named, columns)


def inputs_of(stage: Stage) -> Iterator[tuple[str, Reads, str]]:
    """The inputs from outside: option, what it is, and the path or name."""
    for name, parameter in parameters(type(stage.command)).items():
        if parameter.option.reads is None:
            continue
        symbolic = listed(stage.symbolic.get(name))
        values = listed(value_of(stage.command, parameter))
        if len(symbolic) != len(values):  # a default, or a list that a reference stands for
            symbolic = values if not names_in(stage.symbolic.get(name)) else []
        for text, value in zip(symbolic, values, strict=False):
            if not names_in(text):
                yield name, parameter.option.reads, str(value)


def _tag_of(stage: Stage, model: str) -> str | None:
    """The pretrained tag that goes with a model of a stage."""
    known = parameters(type(stage.command))
    if "pretrained" not in known:
        return DEFAULT_PRETRAINED
    pretrained = value_of(stage.command, known["pretrained"])
    if pretrained is None or isinstance(pretrained, str):
        return pretrained
    tags = list(pretrained or [DEFAULT_PRETRAINED])
    models = listed(value_of(stage.command, known["model"]))
    return str(tags[models.index(model)] if len(tags) > 1 and model in models else tags[-1])


def _check_named(
    recipe: Recipe, stage: Stage, parameter: Parameter, named: Sequence[str], columns: Columns
) -> None:
    for text in named:
        if parameter.option.sql_over:
            _check_sql(recipe, stage, parameter.name, text, columns)
            continue
        column = text.rpartition("=")[0] if parameter.is_mapping and "=" in text else text
        if column not in columns:
            raise recipe.source.error(
                ("stages", stage.name, parameter.name),
                f"no stage before {stage.name!r} produces the column {column!r}",
            )


def _columns(
    recipe: Recipe, stage: Stage, tables: Sequence[str], look: bool
) -> dict[str, pa.DataType] | None:
    """The columns of the tables that a stage reads, with types; None if one cannot be known."""
    columns: dict[str, pa.DataType] = {}
    for option in tables:
        for text in listed(stage.symbolic.get(option)):
            for name in names_in(text):
                maker = recipe.stages.get(name.split(".")[0])
                produced = maker.command.table_columns() if maker is not None else None
                if produced is None or name == RUN:
                    return None
                columns |= {column: _TYPES.get(column, pa.string()) for column in produced}
            if not names_in(text):
                if not look:
                    return None
                columns |= _columns_of(str(text))
    return columns


def _columns_of(path: str) -> dict[str, pa.DataType]:
    place = stores.location(table_files([path])[0])
    with place.open("rb") as file:
        return {field.name: field.type for field in pq.read_schema(file)}


def _check_sql(recipe: Recipe, stage: Stage, option: str, sql: str, columns: Columns) -> None:
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


_TYPES: dict[str, Any] = {
    column.name: column.type for column in (*schema.NEIGHBOUR_COLUMNS, *schema.SCORE_COLUMNS)
}
