"""Read a score table for the report: one DuckDB view with every column, even for an older table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb

from ncclean.base.schema import (
    OPTIONAL_COLUMNS,
    PLACE_COLUMNS,
    SCORE_COLUMNS,
    SCORE_FACTS,
    ScoreFacts,
)
from ncclean.base.url_secrets import without_secrets
from ncclean.data.samples import Place
from ncclean.errors import InputError
from ncclean.storage.catalog import first_line
from ncclean.storage.joined import PLACE, PLACED, SCORES_ALONE, JoinedScores
from ncclean.storage.quoting import finite, identifier, quoted, truth_of
from ncclean.storage.run_facts import RunFacts, read_facts
from ncclean.storage.tables import table_files

_COUNTED = {
    "caption_number": "0",
    "noise_probability": "NULL::FLOAT",
    "is_noisy": "NULL::BOOLEAN",
}  # with replacements from older tables
# The types of columns that the page can filter by, in DuckDB's spelling, and how many of these.
_FILTERED = re.compile(r"U?(TINY|SMALL|BIG)?INT(EGER)?|FLOAT|DOUBLE|BOOLEAN|VARCHAR")
_FLOATS = ("FLOAT", "DOUBLE")
_MOST_FURTHER = 64
SHARD = f"{PLACE}_shard"  # the column of a shard's name, with its table if there are several runs
_NEEDED = ("shard", "key", "row", "status", "similarity")


@dataclass(frozen=True)
class ScoreTable:
    """A score table opened for a report, as the view `pairs` of `connection`.

    The view has places, and score columns with nulls for missing ones. The view `joined_pairs` has
    the scores of joined tables beside a few of those columns: `joined_scores` by column. `partners`
    counts the rows with a match in each joined table. Only aggregates leave DuckDB, so a table of
    any size takes bounded memory. `further` are columns other than ncclean's scores: image signals,
    and users' columns.
    """

    connection: duckdb.DuckDBPyConnection
    facts: RunFacts
    columns: frozenset[str]  # of the files
    joined_scores: Mapping[str, ScoreFacts] = field(default_factory=dict)
    partners: Mapping[str, int] = field(default_factory=dict)
    further: Sequence[str] = ()

    @classmethod
    def open(
        cls, paths: Sequence[str], memory_limit: str | None = None, join: Sequence[str] = ()
    ) -> ScoreTable:
        """Open score files for a report. Raises `InputError` for other files."""
        scores = JoinedScores.open(paths, join, memory_limit)
        connection, origins = scores.connection, scores.names.origins
        columns = frozenset(name for name, origin in origins.items() if not origin.table)
        for name in _NEEDED:
            if name not in columns:
                raise InputError(f"{paths[0]} is not a score table: it has no column {name}")
        optional = (*SCORE_COLUMNS, *OPTIONAL_COLUMNS)
        lacking = {column.name: f"NULL::{column.sql_type}" for column in optional} | _COUNTED
        # NaN, as pandas and Polars write it, is no score: one would make every sum NaN.
        values = lacking | {
            name: finite(name) if scores.names.types[name] in _FLOATS else name
            for name in columns & lacking.keys()
        }
        if "is_noisy" in columns:
            values["is_noisy"] = truth_of(scores.names.types["is_noisy"])
        selected = ", ".join(f"{value} AS {name}" for name, value in values.items())
        further = [
            name
            for name, kind in scores.names.types.items()
            if name in columns and name.lower() not in lacking and _FILTERED.fullmatch(kind)
        ][:_MOST_FURTHER]
        facts_of_run = read_facts(paths)
        shard = "shard"
        if facts_of_run.runs:  # whose shards may share names
            files = [quoted(f" ({without_secrets(file)})") for file in table_files(paths)]
            labels = ", ".join(files[number] for number in facts_of_run.runs)
            shard = f"shard || [{labels}][({PLACE} >> 40) + 1]"
        selected = ", ".join([PLACE, f"{shard} AS {SHARD}", selected, *map(identifier, further)])
        connection.execute(f"CREATE TEMP VIEW pairs AS SELECT {selected} FROM {SCORES_ALONE}")
        joined = {
            # The cosine that it may follow is another one.
            name: dataclasses.replace(
                facts, label=f"{facts.label}, {scores.joins[table - 1].name}", follows_cosine=False
            )
            for name, (table, column) in origins.items()
            if table and (facts := SCORE_FACTS.get(column.lower())) is not None
        }
        scores.prepare([*_NEEDED, *_COUNTED, *joined], is_placed=True)
        counted = [f"{values[name]} AS {name}" for name in (*_NEEDED, *_COUNTED)]
        floats = [
            f"{finite(f'{identifier(name)}::FLOAT')} AS {identifier(name)}" for name in joined
        ]
        connection.execute(
            "CREATE TEMP VIEW joined_pairs AS SELECT "
            f"{', '.join([PLACE, *counted, *floats])} FROM {PLACED}"
        )
        return cls(connection, facts_of_run, columns, joined, scores.partners, further)

    def places(self, pairs: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Place]:
        """Return where samples are in their shards, by shard and row."""
        values = self.rows(
            f"SELECT shard, row, {', '.join(PLACE_COLUMNS)} FROM pairs "
            "WHERE list_contains(?, shard) AND list_contains(?, row)",
            [[shard for shard, _ in pairs], [row for _, row in pairs]],
        )
        return {(shard, row): Place.of(*place) for shard, row, *place in values}

    def rows(self, sql: str, parameters: object = None) -> list[tuple]:  # type: ignore[type-arg]
        """Return the rows of an aggregate query. Raises `InputError` if a file cannot be read."""
        try:
            return self.connection.execute(sql, parameters).fetchall()
        except duckdb.OutOfMemoryException as error:
            raise InputError(f"the report needs more memory: {first_line(error)}") from error
        except duckdb.Error as error:
            raise InputError(f"the score table cannot be read: {first_line(error)}") from error
