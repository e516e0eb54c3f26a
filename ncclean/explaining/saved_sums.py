"""The second step of a search for causes: the sums by group of each kind, a file for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np

from ncclean.base.progress import Progress
from ncclean.explaining.aggregates import Groups, Totals, group_sums
from ncclean.explaining.kinds import Kind, by_ranges, by_values, kinds_of
from ncclean.explaining.pairs_file import Values
from ncclean.explaining.prepared_pairs import PreparedPairs
from ncclean.explaining.working_folder import Work

_RANGES = 8
_FRACTIONS = ("FLOAT", "DOUBLE", "DECIMAL")


def kinds_present(connection: duckdb.DuckDBPyConnection, pairs: PreparedPairs) -> tuple[Kind, ...]:
    """The kinds of group of which the view `pairs` has more than one, the preferred first."""
    columns = [row[0] for row in connection.execute("DESCRIBE pairs").fetchall()]
    by = [_by_kind(connection, *one) for one in pairs.by]
    kinds = kinds_of(columns, pairs.clusters, by)
    return tuple(kind for kind in kinds if _differs(connection, kind))


def saved_sums(
    work: Work,
    connection: duckdb.DuckDBPyConnection,
    kinds: Sequence[Kind],
    values: Values,
    totals: Totals,
    min_pairs: int,
    progress: Progress,
) -> list[Groups]:
    """The sums of each kind: from the file of an earlier run if there is one, else written."""
    groups = []
    for number, kind in enumerate(kinds):
        progress.advance(number, len(kinds), "kinds of groups", now=kind.name)
        name = f"sums-{number}.npz"
        if work.has(name):
            groups.append(_read(work.folder / name, kind))
            continue
        summed = group_sums(connection, kind, values.names(), values.own(), totals, min_pairs)
        with work.writing(name) as aside:
            _write(aside, summed)
        groups.append(summed)
    progress.advance(len(kinds), len(kinds), "kinds of groups")
    return groups


def _read(path: Path, kind: Kind) -> Groups:
    with np.load(path) as saved:
        values = [str(value) for value in saved["values"]]
        pairs, sums, is_typical = (saved[name] for name in ("pairs", "sums", "is_typical"))
        return Groups(kind, values, pairs, sums, is_typical, int(saved["tested"]))


def _write(path: Path, groups: Groups) -> None:
    with open(path, "wb") as file:
        np.savez(
            file,
            values=np.array(groups.values, dtype=str),
            pairs=groups.pairs,
            sums=groups.sums,
            is_typical=groups.is_typical,
            tested=groups.tested,
        )


def _by_kind(connection: duckdb.DuckDBPyConnection, text: str, sql: str, column: str) -> Kind:
    """The kind of an expression of `--by`, in ranges if it is a number with fractions."""
    kind = connection.execute(f"SELECT typeof(any_value({column})) FROM pairs").fetchall()[0][0]
    if not str(kind).startswith(_FRACTIONS):
        return by_values(text, sql, column)
    shares = [number / _RANGES for number in range(1, _RANGES)]
    bounds = connection.execute(
        f"SELECT approx_quantile({column}::DOUBLE, {shares}) FROM pairs WHERE isfinite({column})"
    ).fetchall()[0][0]
    return by_ranges(text, sql, column, sorted(set(bounds or ())))


def _differs(connection: duckdb.DuckDBPyConnection, kind: Kind) -> bool:
    """Whether the pairs have values of a kind, and not all the same."""
    if kind.several:
        return True
    low, high = connection.execute(
        f"SELECT min({kind.value}), max({kind.value}) FROM pairs"
    ).fetchall()[0]
    return low is not None and low != high
