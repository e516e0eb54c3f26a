"""Check that the inputs of a recipe exist, and that tables have the columns that stages need.

Both are checked before the start: a mistake in the last stage must not appear after days of
scoring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb

from ncclean.base import schema
from ncclean.base.option_values import as_list
from ncclean.base.options import Parameter, Reads, parameters, value_of
from ncclean.data import image_signals, languages, text_signals
from ncclean.errors import InputError, ModelError
from ncclean.evaluation.noise_choice import named_score
from ncclean.recipes.references import RUN, names_in
from ncclean.storage.catalog import columns_of, connect
from ncclean.storage.column_names import ColumnNames, JoinedFile
from ncclean.storage.expressions import bind_expression
from ncclean.storage.inputs import check_there
from ncclean.storage.tables import table_files

from ..evaluate_models import ModelOptions
from ..evaluate_noise import EvaluateNoise
from ..finetune import Finetune
from .load import Recipe, Stage


def check_inputs(recipe: Recipe) -> None:
    """Raise `RecipeError`, with the line, for an input of a stage that does not exist."""
    for stage in recipe.stages.values():
        is_random = isinstance(stage.command, Finetune) and stage.command.is_from_scratch
        for option, reads, value in inputs_of(stage):
            try:
                check_there(reads, value, _tag_of(stage, value), is_random=is_random)
            except (InputError, ModelError) as error:
                raise recipe.source.error(("stages", stage.name, option), str(error)) from error


def check_columns(recipe: Recipe, *, look: bool = True) -> None:
    """Raise `RecipeError`, with the line, for a column that a stage reads but none produces.

    External tables are inspected unless `look` is false; then what is read from them is not
    checked.
    """
    for stage in recipe.stages.values():
        for name, parameter in parameters(type(stage.command)).items():
            tables = parameter.option.columns_of or parameter.option.sql_over
            if not tables or stage.values.get(name) is None:
                continue
            named = as_list(stage.values[name])
            if not any(stage.values.get(table) for table in tables):
                continue
            try:
                names = _names(recipe, stage, tables, look)
            except InputError as error:
                raise recipe.source.error(("stages", stage.name, tables[-1]), str(error)) from error
            if names is not None:
                _check_named(recipe, stage, parameter, named, names)


def inputs_of(stage: Stage, *, in_run: bool = False) -> Iterator[tuple[str, Reads, str]]:
    """Return the inputs of a stage from outside the recipe: option, kind, and path or name.

    With `in_run`, those that the recipe names in the run's folder instead, by people or by stages.
    """
    references = {RUN} if in_run else set()
    for name, parameter in parameters(type(stage.command)).items():
        if parameter.option.reads is None:
            continue
        symbolic = as_list(stage.symbolic.get(name))
        values = as_list(value_of(stage.command, parameter))
        if len(symbolic) != len(values):  # a default, or a list that a reference stands for
            symbolic = values if not names_in(stage.symbolic.get(name)) else []
        for text, value in zip(symbolic, values, strict=False):
            if {*names_in(text)} == references:
                yield name, parameter.option.reads, str(value)


def _tag_of(stage: Stage, model: str) -> str | None:
    """The pretrained tag that goes with a model of a stage."""
    if isinstance(stage.command, ModelOptions):
        return {name: tag for name, tag, _ in stage.command.named_models}.get(model)
    return getattr(stage.command, "pretrained", None)


def _check_named(
    recipe: Recipe, stage: Stage, parameter: Parameter, named: Sequence[str], names: ColumnNames
) -> None:
    where = ("stages", stage.name, parameter.name)
    for text in named:
        if parameter.option.sql_over:
            is_named = isinstance(stage.command, EvaluateNoise) and parameter.name == "score"
            text = named_score(text)[1] if is_named else text
            with duckdb.connect(config={"enable_external_access": False}) as connection:
                try:
                    is_condition = parameter.name in ("where", "rule")
                    bind_expression(
                        connection, text, parameter.name, names, is_condition=is_condition
                    )
                except InputError as error:
                    raise recipe.source.error(where, str(error)) from error
            continue
        column = text.rpartition("=")[0] if parameter.is_mapping and "=" in text else text
        if names.named(column) is None and column not in _scores_named(stage):
            sentence = f"no stage before {stage.name!r} produces the column {column!r}"
            raise recipe.source.error(where, sentence)


def _scores_named(stage: Stage) -> list[str]:
    """The scores to which `evaluate noise` gives names."""
    command = stage.command
    texts = command.score if isinstance(command, EvaluateNoise) else ()
    return [named_score(text)[0] for text in texts]


def _names(recipe: Recipe, stage: Stage, tables: Sequence[str], look: bool) -> ColumnNames | None:
    """Return the columns of the tables that a stage reads; None if those of one are unknown."""
    scores: dict[str, str] = {}
    joined: list[tuple[JoinedFile, dict[str, str]]] = []
    for option in tables:
        symbolic, values = (as_list(of.get(option)) for of in (stage.symbolic, stage.values))
        for text, value in zip(symbolic, values, strict=True):
            file = JoinedFile.parse(value) if option == "join" else JoinedFile("", value)
            columns = _columns(recipe, text, file.path, look)
            if columns is None:
                return None
            scores |= columns if option != "join" else {}
            joined += [(file, columns)] if option == "join" else []
    return ColumnNames.of(scores, joined)


def _columns(recipe: Recipe, text: str, path: str, look: bool) -> dict[str, str] | None:
    """Return names and types of the columns of an earlier stage's table, or an external one."""
    for name in names_in(text):
        maker = recipe.stages.get(name.split(".")[0])
        produced = maker.command.table_columns() if maker is not None else None
        if produced is None or name == RUN:
            return None
        return {column: _TYPES.get(column, "VARCHAR") for column in sorted(produced)}
    if not look:
        return None
    with connect(table_files([path])[:1]) as connection:
        return columns_of(connection, "scores")


_TYPES = {
    column.name: column.sql_type
    for column in (*schema.NEIGHBOUR_COLUMNS, *schema.SCORE_COLUMNS, *schema.OPTIONAL_COLUMNS)
} | {
    name: schema.SQL_TYPES[str(kind)]
    for signals in (image_signals, languages, text_signals)
    for name, kind in signals.TYPES.items()
}
