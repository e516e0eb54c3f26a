"""Write the scored pairs of a table to a temporary file, with the values that compare groups.

A piece of evidence also becomes a value in [0, 1]: the mean probability of the pairs with similar
numbers, in 64 bins of equally many pairs. Its mean over a group equals the probability's, unless
the group's scores are low for a reason that the evidence is blind to.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from ncclean.base.progress import Progress
from ncclean.data import text_signals
from ncclean.errors import InputError
from ncclean.explaining.kinds import DERIVED, Kind, by_ranges, by_values, kinds_of, length_class
from ncclean.explaining.outcomes import Evidence, Outcome, outcomes_of
from ncclean.storage.catalog import columns_of, connect
from ncclean.storage.column_names import ColumnNames
from ncclean.storage.expressions import one_expression
from ncclean.storage.joined import JoinedScores
from ncclean.storage.quoting import identifier, quoted

CLUSTERS = "clusters"  # the name of their table where it is joined
_BINS = 64
_RANGES = 8
_FRACTIONS = ("FLOAT", "DOUBLE", "DECIMAL")
_KEPT = ("shard", "key", "row", "caption_number", "uid", "text", "url", "width", "height",
         "caption_key", "language", *text_signals.TYPES, "similarity", "suspect_word",
         "better_word")  # fmt: skip


@dataclass(frozen=True)
class Required:
    """The values that must be in excess in a group that has a cause in one outcome.

    `columns` are their indices, the outcome's probability first. Each exceeds by at least the share
    `least` of what wrong pairs would cause.
    """

    columns: tuple[int, ...]
    least: tuple[float, ...]


@dataclass(frozen=True)
class Values:
    """The value columns of the view `pairs`, numbers in [0, 1] that are compared between groups.

    `v0`, `v1`, ... are the probabilities of the outcomes, `v0_NAME` is evidence for the first.
    """

    outcomes: tuple[Outcome, ...]

    def names(self) -> list[str]:
        """List the value columns: for each outcome its probability, then its evidence."""
        return [
            name
            for number, outcome in enumerate(self.outcomes)
            for name in (self.of(number), *(self.evidence(number, one) for one in outcome.evidence))
        ]

    def owners(self) -> list[str]:
        """Return, for each of `names`, the column with the probability of its outcome."""
        return [name.partition("_")[0] for name in self.names()]

    def own(self) -> list[str]:
        """List the columns with the probabilities of the outcomes, without evidence."""
        return [self.of(number) for number in range(len(self.outcomes))]

    @staticmethod
    def of(number: int) -> str:
        return f"v{number}"

    @staticmethod
    def evidence(number: int, evidence: Evidence) -> str:
        return f"v{number}_{evidence.name}"

    def required(self, number: int) -> Required:
        """Return the values that must be in excess in a group with a cause in this outcome."""
        evidence = self.outcomes[number].evidence
        first = self.names().index(self.of(number))
        columns = tuple(range(first, first + 1 + len(evidence)))
        return Required(columns, (1.0, *(one.least for one in evidence)))


@dataclass(frozen=True)
class Pairs:
    """The view `pairs` of a connection: the scored pairs of a table with the columns of `values`.

    `kinds` are the kinds of groups, except those with all pairs in one group, the preferred first.
    `unknown` names the outcomes whose probability the table lacks. `rows` is the number of rows of
    the table, `scored` that with scores, `joined` that with a partner in each joined table.
    """

    connection: duckdb.DuckDBPyConnection
    values: Values
    kinds: Sequence[Kind]
    unknown: Sequence[str]
    rows: int
    scored: int
    joined: Mapping[str, int]


@contextlib.contextmanager
def prepared_pairs(
    folder: Path,
    scores: Sequence[str],
    join: Sequence[str],
    by: Sequence[str],
    clusters: Path | None,
    memory_limit: str | None,
    progress: Progress,
) -> Iterator[Pairs]:
    """Write the scored pairs of a table to a file in `folder`, and open it as the view `pairs`.

    `by` are the expressions of `--by`, `clusters` is a table of image clusters to be joined. Raises
    `InputError` for a table without noise probabilities, or with only unknown ones.
    """
    file = folder / "pairs.parquet"
    joined = None if clusters is None else f"{CLUSTERS}={clusters}"
    tables = [*join, *([joined] if joined is not None else [])]
    by = tuple(dict.fromkeys(by))
    with JoinedScores.open(scores, tables, memory_limit, writable=file) as table:
        columns = table.names.types
        outcomes = outcomes_of(columns)
        if "status" not in columns or not outcomes:
            raise InputError(
                f"{scores[0]} has no noise probabilities: it is not a score table, or was scored "
                "without"
            )
        expressions = {f"_by_{n}": table.expression(text, "--by") for n, text in enumerate(by)}
        of_images = {}  # SQL of their clusters over the table, and over what is read of it
        for name in ("cluster", "region"):
            sql = name if joined is None else f"{CLUSTERS}.{name}"
            column = table.names.named(sql)
            if column is not None and "INT" in columns[column]:  # a region may be of a country
                of_images[name] = sql, identifier(column)
        progress.say("reading the score table")
        table.prepare(columns, expressions.values())
        finite = ", ".join(
            f"count(*) FILTER (status = 'ok' AND isfinite(({outcome.value})::DOUBLE))"
            for outcome in outcomes
        )
        rows, scored, *counts = table.connection.execute(
            f"SELECT count(*), count(*) FILTER (status = 'ok'), {finite} FROM scores"
        ).fetchall()[0]
        are_known = [count > 0 or not scored for count in counts]
        if not any(are_known):
            raise InputError(
                f"{scores[0]}: none of its noise probabilities is known; `ncclean score` said why"
            )
        of_known = list(zip(outcomes, are_known, strict=True))
        values = Values(tuple(outcome for outcome, is_known in of_known if is_known))
        further = {column: expression.sql for column, expression in expressions.items()}
        further |= {name: sql for name, (_, sql) in of_images.items()}
        query = pairs_query(table.connection, columns, values, further)
        table.connection.execute(
            f"COPY ({query}) TO {quoted(str(file))} "
            "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )
        conditioned = [_conditioned(text, table.names) for text in by]
    with contextlib.closing(
        connect([str(file)], memory_limit, view="pairs", place="place", is_own=True)
    ) as connection:
        kinds = kinds_of(
            columns_of(connection, "pairs"),
            {name: sql for name, (sql, _) in of_images.items()},
            [
                _by_kind(connection, *names)
                for names in zip(by, conditioned, expressions, strict=True)
            ],
        )
        yield Pairs(
            connection=connection,
            values=values,
            kinds=[kind for kind in kinds if _differs(connection, kind)],
            unknown=[outcome.name for outcome, is_known in of_known if not is_known],
            rows=int(rows),
            scored=int(scored),
            joined=table.partners,
        )


def _conditioned(text: str, names: ColumnNames) -> str:
    """Return SQL for an expression inside others: a name quoted, without comments."""
    named = names.named(text)
    return one_expression(text if named is None else identifier(named), "--by")


def _by_kind(connection: duckdb.DuckDBPyConnection, text: str, sql: str, column: str) -> Kind:
    """Return the kind of an expression of `--by`, in ranges if its numbers have fractions."""
    kind = connection.execute(f"SELECT typeof(any_value({column})) FROM pairs").fetchall()[0][0]
    if not str(kind).startswith(_FRACTIONS):
        return by_values(text, sql, column)
    shares = [number / _RANGES for number in range(1, _RANGES)]
    bounds = connection.execute(
        f"SELECT approx_quantile({column}::DOUBLE, {shares}) FROM pairs WHERE isfinite({column})"
    ).fetchall()[0][0]
    return by_ranges(text, sql, column, sorted(set(bounds or ())))


def _differs(connection: duckdb.DuckDBPyConnection, kind: Kind) -> bool:
    """Check whether some pairs have a value of a kind, and others another one or none."""
    if kind.several:
        return True
    low, high, missing = connection.execute(
        f"SELECT min({kind.value}), max({kind.value}), count(*) - count({kind.value}) FROM pairs"
    ).fetchall()[0]
    return low is not None and (low != high or missing > 0)


def pairs_query(
    connection: duckdb.DuckDBPyConnection,
    columns: Mapping[str, str],
    values: Values,
    further: Mapping[str, str],
) -> str:
    """Return SQL for the scored pairs of the view `scores`, a row each, with the value columns.

    `stratum` is the class of the caption's length; `further` are columns by name with their SQL.
    Runs a query first, to bin the evidence.
    """
    strata = length_class("len(tokens)") if "text" in columns else "0"
    selected = [identifier(name) for name in _KEPT if name in columns]
    selected += [f"{sql} AS {name}" for name, (source, sql) in DERIVED.items() if source in columns]
    selected += [f"{sql} AS {identifier(name)}" for name, sql in further.items()]
    for number, outcome in enumerate(values.outcomes):
        value, weight = _share(outcome.value), _share(outcome.weight)
        selected.append(f"({value} * {weight})::FLOAT AS {values.of(number)}")
        for evidence in outcome.evidence:
            sql = f"{weight} * {_meaning(connection, evidence, value, weight)}"
            selected.append(f"({sql})::FLOAT AS {values.evidence(number, evidence)}")
    # Outside, `tokens` is ours, not a column of the table.
    pairs = f"SELECT {', '.join(selected)} FROM scores WHERE status = 'ok'"
    return f"SELECT *, {strata}::UTINYINT AS stratum FROM ({pairs})"


def _share(value: str) -> str:
    """Return SQL for a number from 0 to 1, with 0 for unknown."""
    number = f"({value})::DOUBLE"
    return f"(CASE WHEN isfinite({number}) THEN least(greatest({number}, 0), 1) ELSE 0 END)"


def _meaning(
    connection: duckdb.DuckDBPyConnection, evidence: Evidence, value: str, weight: str
) -> str:
    """Return SQL for a piece of evidence's value; the probability itself if it tells nothing."""
    source = (
        f"(SELECT ({evidence.sql})::DOUBLE AS _x, {value} AS _y, {weight} AS _w "
        f"FROM scores WHERE status = 'ok') WHERE isfinite(_x)"
    )
    shares = [number / _BINS for number in range(1, _BINS)]
    ends = connection.execute(f"SELECT approx_quantile(_x, {shares}) FROM {source}").fetchall()
    bounds = sorted({bound for bound in ends[0][0] or () if math.isfinite(bound)})
    means = dict(
        connection.execute(
            f"SELECT {_bin('_x', bounds)}, sum(_w * _y) / sum(_w) FROM {source} GROUP BY 1"
        ).fetchall()
    )
    means = {number: mean for number, mean in means.items() if mean is not None}
    if not means:
        return value
    overall = sum(means.values()) / len(means)
    listed = ", ".join(repr(float(means.get(n, overall))) for n in range(len(bounds) + 1))
    number = f"({evidence.sql})::DOUBLE"
    return (
        f"(CASE WHEN isfinite({number}) THEN ([{listed}])[{_bin(number, bounds)} + 1] "
        f"ELSE {value} END)"
    )


def _bin(value: str, bounds: list[float]) -> str:
    """Return SQL for the number of bounds below a value."""
    listed = f"[{', '.join(map(repr, bounds))}]::DOUBLE[]"
    return f"len(list_filter({listed}, lambda bound: {value} > bound))"
