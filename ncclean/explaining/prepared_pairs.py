"""The first step of a search for causes: the pairs with their values, in the working folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from ncclean.base.progress import Progress
from ncclean.errors import InputError
from ncclean.explaining.outcomes import Outcome, outcomes_of
from ncclean.explaining.pairs_file import Values, pairs_query
from ncclean.explaining.working_folder import Work
from ncclean.storage.catalog import connect
from ncclean.storage.column_names import ColumnNames
from ncclean.storage.expressions import one_expression
from ncclean.storage.joined import JoinedScores
from ncclean.storage.quoting import identifier, quoted

PAIRS, MEMBERS = "pairs.parquet", "members.parquet"
CLUSTERS = "clusters"  # the name of their table where it is joined
_FACTS, _BY = "pairs.json", "_by_{}"


@dataclass(frozen=True)
class PreparedPairs:
    """The file of the pairs, and what is in it.

    `unknown` names the outcomes of which the table has no probability. `by` are the texts of
    `--by` with their SQL and their columns, `clusters` the SQL of the columns `cluster` and
    `region` and `cluster_table` their table, as `--join` takes it. `rows` counts those of the
    table, `scored` those with scores, `joined` those with a partner in each joined table.
    """

    work: Work
    memory_limit: str | None
    values: Values
    unknown: Sequence[str]
    by: tuple[tuple[str, str, str], ...]
    clusters: Mapping[str, str]
    cluster_table: str | None
    rows: int
    scored: int
    joined: Mapping[str, int]

    def opened(self, members: bool = False) -> contextlib.closing[duckdb.DuckDBPyConnection]:
        """Open the view `pairs`, and `members` if they have been written."""
        folder = self.work.folder
        beside = {"members": [str(folder / MEMBERS)]} if members else {}
        files = [str(folder / PAIRS)]
        return contextlib.closing(
            connect(
                files, self.memory_limit, beside=beside, view="pairs", place="place", is_own=True
            )
        )


def prepare_pairs(
    work: Work,
    scores: Sequence[str],
    join: Sequence[str],
    by: Sequence[str],
    clusters: str | None,
    memory_limit: str | None,
    progress: Progress,
) -> PreparedPairs:
    """Write the file of the pairs, unless it is there.

    `by` are the expressions of `--by`, `clusters` is the table of clusters, to be joined. Raises
    `InputError` for a table without noise probabilities, and for one of which none is known.
    """
    joined = None if clusters is None else f"{CLUSTERS}={clusters}"
    tables = [*join, *([joined] if joined is not None else [])]
    with contextlib.ExitStack() as stack:
        aside = None
        if not work.has(PAIRS):
            aside = stack.enter_context(work.writing(PAIRS))
        table = stack.enter_context(JoinedScores.open(scores, tables, memory_limit, writable=aside))
        columns = table.names.types
        outcomes = outcomes_of(columns)
        if "status" not in columns or not outcomes:
            raise InputError(
                f"{scores[0]} has no noise probabilities: it is not a score table, or was scored "
                "without"
            )
        by = tuple(dict.fromkeys(by))
        expressions = {_BY.format(n): table.expression(text, "--by") for n, text in enumerate(by)}
        of_images = {}
        for name in ("cluster", "region"):
            sql = name if joined is None else f"{CLUSTERS}.{name}"
            column = table.names.named(sql)
            if column is not None and "INT" in columns[column]:  # a region may be of a country
                of_images[name] = sql
        if aside is not None:
            progress.say("reading the score table")
            table.prepare(columns, expressions.values())
            facts = _facts(table, outcomes)
            with work.writing(_FACTS) as facts_aside:
                facts_aside.write_text(json.dumps(facts))
            further = {column: one.sql for column, one in expressions.items()}
            further |= {
                name: identifier(str(table.names.named(sql))) for name, sql in of_images.items()
            }
            values = Values(_known(outcomes, facts["unknown"]))
            query = pairs_query(table.connection, columns, values, further)
            table.connection.execute(
                f"COPY ({query}) TO {quoted(str(aside))} "
                "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
            )
    facts = json.loads((work.folder / _FACTS).read_text())
    if len(facts["unknown"]) == len(outcomes):
        raise InputError(
            f"{scores[0]}: none of its noise probabilities is known; `ncclean score` said why"
        )
    return PreparedPairs(
        work=work,
        memory_limit=memory_limit,
        values=Values(_known(outcomes, facts["unknown"])),
        by=tuple(
            (text, _conditioned(text, table.names), column)
            for text, column in zip(by, expressions, strict=True)
        ),
        clusters=of_images,
        cluster_table=joined,
        **facts,
    )


def _conditioned(text: str, names: ColumnNames) -> str:
    """SQL for an expression that stands within others: a name quoted, without comments."""
    named = names.named(text)
    return one_expression(text if named is None else identifier(named), "--by")


def _facts(table: JoinedScores, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """`rows`, `scored`, `unknown` and `joined` of `PreparedPairs`."""
    known = "".join(
        f", count(*) FILTER (status = 'ok' AND isfinite(({outcome.value})::DOUBLE))"
        for outcome in outcomes
    )
    rows, scored, *counts = table.connection.execute(
        f"SELECT count(*), count(*) FILTER (status = 'ok'){known} FROM scores"
    ).fetchall()[0]
    unknown = [
        outcome.name
        for outcome, count in zip(outcomes, counts, strict=True)
        if scored and not count
    ]
    return {
        "rows": int(rows), "scored": int(scored), "unknown": unknown, "joined": table.partners
    }  # fmt: skip


def _known(outcomes: Sequence[Outcome], unknown: Sequence[str]) -> tuple[Outcome, ...]:
    return tuple(one for one in outcomes if one.name not in unknown)
