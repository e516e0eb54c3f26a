"""The search for causes: from a score table to the table of causes, step by step, resumable.

Each step leaves a file in a working folder beside the output: the clusters, the pairs with their
values, the sums by group of each kind, the members of the groups that stand out. A run that was
interrupted goes on after the last of them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from upath import UPath

from ncclean import stores
from ncclean.atomic import published, raise_if_full, remove_leftovers
from ncclean.errors import InputError
from ncclean.explaining.aggregates import Groups, Totals, group_sums
from ncclean.explaining.candidates import Candidate, Candidates, candidates_of
from ncclean.explaining.cause_table import Cause, write_causes
from ncclean.explaining.described import described
from ncclean.explaining.exchanged_words import exchanged
from ncclean.explaining.folding import fold
from ncclean.explaining.kinds import Kind, by_ranges, by_values, kinds_of
from ncclean.explaining.members import members_query, patterns_of
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.outcomes import outcomes_of
from ncclean.explaining.pairs_file import Values, pairs_query
from ncclean.explaining.shifts import (
    Shift,
    find_shift,
    is_ordered,
    mended_captions,
    read_vectors,
    right_cosine,
)
from ncclean.explaining.working_folder import COMMAND, Work, working_folder
from ncclean.output_mark import check_free
from ncclean.progress import SILENT, Progress
from ncclean.schema import DECISIONS
from ncclean.storage.catalog import connect, first_line
from ncclean.storage.decisions import CORRECT, DROP, Decision, write_decisions
from ncclean.storage.joined import JoinedScores
from ncclean.storage.quoting import identifier, quoted

_CLUSTERS = "clusters"  # the name of their table where it is joined
_BY = "_by_{}"
_RANGES = 8
_FRACTIONS = ("FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True)
class Explained:
    """What was found: `causes`, and the groups that are folded into them, after all causes.

    `rows` of the table, `pairs` of them with scores, `tested` groups, each once for every outcome
    that the table tells about. `left_out` groups stood out beyond those that could be compared with
    one another. `fixed` pairs have a decision, None where none were asked for.
    """

    causes: tuple[Cause, ...]
    folded: tuple[Cause, ...]
    outcomes: tuple[str, ...]
    rows: int
    pairs: int
    tested: int
    left_out: int
    seconds: float
    out: str
    clusters: str | None = None
    fixed: int | None = None
    joined: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "causes": [cause.to_json() for cause in self.causes],
            "folded": [cause.to_json() for cause in self.folded],
            "outcomes": list(self.outcomes),
            "rows": self.rows,
            "pairs": self.pairs,
            "tested": self.tested,
            "left_out": self.left_out,
            "seconds": round(self.seconds, 2),
            "joined": self.joined,
            "clusters": self.clusters,
            "fixed": self.fixed,
            "out": self.out,
        }


def explain_scores(
    scores: Sequence[str],
    out: str,
    options: ExplainOptions | None = None,
    *,
    embeddings: Sequence[str] = (),
    embedding_keys: tuple[str, str] | None = None,
    fixes: str | None = None,
    join: Sequence[str] = (),
    memory_limit: str | None = None,
    identity: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Explained:
    """Find groups of pairs that are wrong more often than others, and write them to `out`.

    `embeddings` give image clusters, which are written beside `out`: conditions read them from
    there. `fixes` is a file of decisions to write, as `ncclean review` does: the right captions of
    shifted ones. `identity` is what the result depends on; an interrupted run is resumed if it is
    the same. Raises `InputError` for a table without probabilities, and `ResumeError` for the
    working folder of another run.
    """
    begin = time.perf_counter()
    options = options or ExplainOptions()
    path = stores.location(out)
    check_free([out, fixes], COMMAND, overwrite)
    with working_folder(path, identity or {}, overwrite) as work:
        search = _Search(
            work, scores, options, list(join), memory_limit, progress, embeddings, embedding_keys,
            fixes is not None,
        )  # fmt: skip
        clusters = None
        if embeddings:
            clusters = _clusters_path(path)
            search.cluster(clusters)
        try:
            found = search.run()
        except duckdb.Error as error:
            raise_if_full(UPath(work.folder), error)
            raise InputError(f"the causes cannot be found: {first_line(error)}") from error
        causes = [cause for cause in found.described if cause.folded_into is None]
        folded = [cause for cause in found.described if cause.folded_into is not None]
        if fixes is not None:
            _write_fixes(stores.location(fixes), found.mended or [])
        write_causes(path, [*causes, *folded], {"pairs": str(found.pairs)})
    remove_leftovers(path.parent, {path.name})
    return Explained(
        causes=tuple(causes),
        folded=tuple(folded),
        outcomes=tuple(outcome.name for outcome in found.values.outcomes),
        rows=found.rows,
        pairs=found.pairs,
        tested=found.candidates.tested,
        left_out=found.candidates.left_out,
        seconds=time.perf_counter() - begin,
        out=out,
        clusters=str(clusters) if clusters is not None else None,
        fixed=len(found.mended) if found.mended is not None else None,
        joined=found.joined,
    )


@dataclass(frozen=True)
class _Found:
    described: list[Cause]
    candidates: Candidates
    values: Values
    mended: list[tuple[str, int, str | None]] | None
    rows: int
    pairs: int
    joined: dict[str, int]


@dataclass
class _Search:
    work: Work
    scores: Sequence[str]
    options: ExplainOptions
    join: list[str]
    memory_limit: str | None
    progress: Progress
    embeddings: Sequence[str] = ()
    embedding_keys: tuple[str, str] | None = None
    fixes: bool = False
    cluster_table: str | None = None

    def cluster(self, out: UPath) -> None:
        """Write the clusters of the images, unless that is done."""
        from ncclean.explaining.clusters import write_clusters

        options = self.options
        if not self.work.has("clustered"):
            with published(out) as aside:
                write_clusters(
                    aside, self.embeddings, self.embedding_keys, options.clusters, options.seed,
                    self.progress,
                )  # fmt: skip
            with self.work.writing("clustered") as aside:
                aside.touch()
        self.cluster_table = f"{_CLUSTERS}={out}"
        self.join.append(self.cluster_table)

    def run(self) -> _Found:
        by, values, clusters, facts = self._write_pairs()
        with self._pairs() as connection:
            columns = [row[0] for row in connection.execute("DESCRIBE pairs").fetchall()]
            kinds = kinds_of(columns, clusters, [self._by_kind(connection, *one) for one in by])
            kinds = tuple(kind for kind in kinds if _differs(connection, kind))
            totals = Totals.read(connection, values)
            groups = []
            for number, kind in enumerate(kinds):
                self.progress.advance(number, len(kinds), "kinds of groups", now=kind.name)
                groups.append(self._sums(connection, number, kind, values, totals))
        self.progress.advance(len(kinds), len(kinds), "kinds of groups")
        candidates = candidates_of(groups, totals, values, self.options)
        listed = candidates.listed
        numbers = {group: n for n, group in enumerate(dict.fromkeys(c.group for c in listed))}
        selected = {c.group: (c.kind, c.value) for c in listed}
        self.progress.say(f"comparing {len(numbers):,} groups with one another")
        if not self.work.has("members.parquet"):
            with self.work.writing("members.parquet") as aside:
                _write_members(self._pairs_file, aside, list(selected.values()), self.memory_limit)
        with self._pairs(members=True) as connection:
            patterns = patterns_of(connection, len(numbers), values.names(), totals)
            group_of = [numbers[candidate.group] for candidate in listed]
            folded = fold(
                listed, group_of, patterns, self.options, candidates.log_threshold,
                [kind.name for kind in kinds],
            )  # fmt: skip
            moved, proposals = self._proposals(connection, listed, group_of, folded.causes, values)
            mended = mended_captions(connection, moved) if self.fixes else None
            causes = described(
                connection, listed, group_of, folded, values, totals, self.options,
                self.cluster_table, proposals,
            )  # fmt: skip
        return _Found(causes, candidates, values, mended, *facts)

    def _proposals(
        self,
        connection: duckdb.DuckDBPyConnection,
        listed: Sequence[Candidate],
        group_of: Sequence[int],
        causes: Sequence[int],
        values: Values,
    ) -> tuple[list[Shift], dict[int, str]]:
        """How to mend causes, by number of the candidate, and the shifts among these."""
        by = set(self.options.by)
        proposals: dict[int, str] = {}
        ordered = []
        for cause in causes:
            candidate = listed[cause]
            name = values.outcomes[candidate.outcome].name
            if name == "near miss":
                text = exchanged(connection, group_of[cause], values.of(candidate.outcome))
                if text is not None:
                    proposals[cause] = text
            elif name == "mismatch" and is_ordered(candidate.kind.name, candidate.kind.name in by):
                ordered.append(cause)
        if not (ordered and self.embeddings and _has_column(connection, "similarity")):
            return [], proposals
        self.progress.say("looking for shifted captions")
        right = right_cosine(connection, values.of(listed[ordered[0]].outcome))
        groups = {group_of[cause]: cause for cause in ordered}
        vectors = read_vectors(connection, list(groups), self.embeddings, self.embedding_keys)
        shifts = []
        for group, arrays in vectors.items():
            shift = find_shift(*arrays, right)
            if shift is not None:
                shifts.append(shift)
                proposals[groups[group]] = str(shift)
        return shifts, proposals

    @property
    def _pairs_file(self) -> str:
        return str(self.work.folder / "pairs.parquet")

    def _pairs(self, members: bool = False) -> contextlib.closing[duckdb.DuckDBPyConnection]:
        beside = {"members": [str(self.work.folder / "members.parquet")]} if members else {}
        return contextlib.closing(
            connect(
                [self._pairs_file], self.memory_limit, beside=beside, view="pairs", place="place"
            )
        )

    def _write_pairs(self) -> tuple[Any, Values, dict[str, str], tuple[int, int, dict[str, int]]]:
        """Write the file of the pairs, unless it is there; returns what it has."""
        with contextlib.ExitStack() as stack:
            aside = None
            if not self.work.has("pairs.parquet"):
                aside = stack.enter_context(self.work.writing("pairs.parquet"))
            scores = stack.enter_context(
                JoinedScores.open(self.scores, self.join, self.memory_limit, writable=aside)
            )
            columns = scores.names.types
            values = Values(outcomes_of(columns))
            if "status" not in columns or not values.outcomes:
                raise InputError(
                    f"{self.scores[0]} has no noise probabilities: it is not a score table, or was "
                    "scored without"
                )
            by, further = [], {}
            for number, text in enumerate(self.options.by):
                expression = scores.expression(text, "--by")
                by.append((text, expression, _BY.format(number)))
                further[_BY.format(number)] = expression.sql
            clusters = {}
            for name in ("cluster", "region"):
                sql = f"{_CLUSTERS}.{name}" if self.cluster_table else name
                named = scores.names.named(sql)
                if named is not None:
                    clusters[name] = sql
                    further[name] = identifier(named)
            if aside is not None:
                self.progress.say("reading the score table")
                scores.prepare(columns, [expression for _, expression, _ in by])
                query = pairs_query(scores.connection, columns, values, further)
                scores.connection.execute(
                    f"COPY ({query}) TO {quoted(str(aside))} "
                    "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
                )
            rows, pairs = scores.connection.execute(
                "SELECT count(*), count(*) FILTER (status = 'ok') FROM scores"
            ).fetchall()[0]
            facts = int(rows), int(pairs), dict(scores.partners)
        return by, values, clusters, facts

    def _by_kind(
        self, connection: duckdb.DuckDBPyConnection, text: str, expression: Any, column: str
    ) -> Kind:
        kind = connection.execute(f"SELECT typeof(any_value({column})) FROM pairs").fetchall()[0][0]
        if not str(kind).startswith(_FRACTIONS):
            return by_values(text, text, column)
        shares = [number / _RANGES for number in range(1, _RANGES)]
        bounds = connection.execute(
            f"SELECT approx_quantile({column}::DOUBLE, {shares}) FROM pairs "
            f"WHERE isfinite({column})"
        ).fetchall()[0][0]
        return by_ranges(text, text, column, sorted(set(bounds or ())))

    def _sums(
        self,
        connection: duckdb.DuckDBPyConnection,
        number: int,
        kind: Kind,
        values: Values,
        totals: Totals,
    ) -> Groups:
        """The sums of a kind, from the file of an earlier run if there is one."""
        name = f"sums-{number}.npz"
        if self.work.has(name):
            with np.load(self.work.folder / name) as saved:
                return Groups(
                    kind,
                    [str(one) for one in saved["values"]],
                    saved["pairs"],
                    saved["sums"],
                    saved["is_typical"],
                    int(saved["tested"]),
                )
        groups = group_sums(
            connection, kind, values.names(), values.own(), totals, self.options.min_pairs
        )
        with self.work.writing(name) as aside, open(aside, "wb") as file:
            np.savez(
                file,
                values=np.array(groups.values, dtype=str),
                pairs=groups.pairs,
                sums=groups.sums,
                is_typical=groups.is_typical,
                tested=groups.tested,
            )
        return groups


def _write_fixes(out: UPath, mended: Sequence[tuple[str, int, str | None]]) -> None:
    """Write decisions: the right caption, or to drop the pair if that is beyond the end."""
    now = datetime.now(timezone.utc)
    rows = [
        Decision(uid, number, CORRECT if text else DROP, text, "ncclean explain", now)._asdict()
        for uid, number, text in mended
    ]
    write_decisions(out, pa.Table.from_pylist(rows, DECISIONS), COMMAND)


def _has_column(connection: duckdb.DuckDBPyConnection, name: str) -> bool:
    return name in {row[0] for row in connection.execute("DESCRIBE pairs").fetchall()}


def _differs(connection: duckdb.DuckDBPyConnection, kind: Kind) -> bool:
    """Whether the pairs have values of a kind, and not all the same."""
    if kind.several:
        return True
    low, high = connection.execute(
        f"SELECT min({kind.value}), max({kind.value}) FROM pairs"
    ).fetchall()[0]
    return low is not None and low != high


def _write_members(
    pairs: str, aside: Path, groups: Sequence[tuple[Kind, str]], memory_limit: str | None
) -> None:
    with contextlib.closing(
        connect([pairs], memory_limit, view="pairs", place="place", writable=aside)
    ) as connection:
        query = (
            members_query(connection, groups)
            if groups
            else ("SELECT 0::BIGINT AS place, 0::INT AS member LIMIT 0")
        )
        connection.execute(
            f"COPY ({query}) TO {quoted(str(aside))} (FORMAT parquet, COMPRESSION zstd)"
        )


def _clusters_path(out: UPath) -> UPath:
    return out.with_name(out.name.removesuffix(".parquet") + ".clusters.parquet")
