"""Group pairs that are calibrated separately, by a column or SQL over each pair's facts."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.base import schema
from ncclean.errors import InputError
from ncclean.storage import sql_tree
from ncclean.storage.catalog import SAME_TIMES
from ncclean.storage.expressions import NotPerPair, explain, one_expression, type_per_pair

# More of them in one shard are not groups: the column differs for every pair.
_MOST_GROUPS = 200
_WHOLE = "CASE WHEN value = trunc(value) THEN TRY_CAST(value AS BIGINT)::VARCHAR END"


def names_in(sql: str) -> set[str]:
    """Return the names of the columns and fields in an SQL expression."""
    with duckdb.connect() as connection:
        return sql_tree.names_in(connection, sql)


def check_grouping(sql: str) -> None:
    """Raise `InputError` if `--calibrate-by` is not an SQL expression; columns are not checked."""
    group_labels(sql, schema.SCORES.empty_table())


def group_labels(sql: str, table: pa.Table) -> pa.Array:
    """Return (n,) group labels: the value of an SQL expression for each row, null if it has none.

    A name that is not a column is null: a field that only some shards have. Raises `InputError` for
    an expression that cannot be evaluated, or with hundreds of values.
    """
    one_expression(sql, "--calibrate-by")
    columns = {name.lower() for name in table.column_names}
    missing = sorted(name for name in names_in(sql) if name.lower() not in columns)
    for name in missing:
        table = table.append_column(name, pa.nulls(len(table)))
    connection = duckdb.connect()
    try:
        connection.register("pairs", table)
        connection.execute(SAME_TIMES)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        kind = type_per_pair(connection, "", "pairs", f"({sql}\n)", alone=True)
        label = "value::VARCHAR"
        if kind in ("FLOAT", "DOUBLE"):
            # pandas stores integers as floats in shards with gaps, and gaps as NaN.
            label = f"CASE WHEN NOT isnan(value) THEN coalesce({_WHOLE}, {label}) END"
        query = f"SELECT {label} AS label FROM (SELECT ({sql}\n) AS value FROM pairs)"
        labels = connection.sql(query).to_arrow_table().column("label").combine_chunks()
    except duckdb.Error as error:
        raise InputError(f"--calibrate-by {sql}: {explain(error, ())}") from error
    except NotPerPair as error:
        raise InputError(f"--calibrate-by {sql}: {error}") from None
    finally:
        connection.close()
    if isinstance(labels, pa.ChunkedArray):
        labels = pa.nulls(0, pa.string())
    values = len(pc.unique(labels))
    if values > _MOST_GROUPS:
        raise InputError(
            f"--calibrate-by {sql} has {values:,} values in one shard: it takes what is the same "
            "for many pairs, such as a language or a source"
        )
    return labels.cast(pa.string())
