"""What is made of the tasks of an export: one table of their rows, one schema of their files."""

from __future__ import annotations

from collections.abc import Container, Mapping

import pyarrow as pa
from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.images.text_rows import SEPARATED
from ncclean.runners.runner import Runner
from ncclean.selection.exported_files import join_rows
from ncclean.selection.out_layout import PARQUET, Targets
from ncclean.selection.parquet_pieces import join_parquet, schema_of, unified


def join_parts(targets: Targets, parts: Mapping[UPath, Container[str]], columns: list[str]) -> None:
    """Make the tables of their parts, unless an earlier run has, and remove these.

    Of each part, the rows of images at the given paths are left out.
    """
    tables = targets.tables
    if len(stores.present_files(tables)) < len(tables):
        if tables[0].name.endswith(PARQUET):
            with published(tables[0]) as aside:
                join_parquet([*parts], aside, left_out=[*parts.values()])
        else:
            is_text = tables[0].suffix in SEPARATED
            join_rows(parts, columns, tables, targets.layout.separator if is_text else None)
    stores.remove_files(parts)


def agree(targets: Targets, schemas: Mapping[int, pa.Schema], runner: Runner) -> None:
    """Give all Parquet files one schema: loaders take that of the first for all."""
    one = unified(schemas.values())
    odd = [number for number, schema in schemas.items() if not schema.equals(one, True)]
    calls = ((number, (str(targets.data(number).absolute()), one)) for number in odd)
    for _ in runner.map(_conform, calls):
        pass


def _conform(file: str, schema: pa.Schema) -> None:
    """Write a Parquet file anew under a schema that has its columns."""
    path = stores.location(file)
    if schema_of(path).equals(schema, True):
        return
    with published(path) as aside:
        join_parquet([path], aside, schema)
