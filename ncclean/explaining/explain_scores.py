"""Search for causes: from a score table to the table of causes, step by step.

The pairs with their values are written to a temporary file; their sums by group, kind by kind, tell
which groups stand out; their members tell which groups are causes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from ncclean.base import stores
from ncclean.base.atomic import published, raise_if_full, remove_leftovers
from ncclean.base.formats import counted
from ncclean.base.output_mark import check_free
from ncclean.base.progress import SILENT, Progress
from ncclean.base.scratch import scratch_folder
from ncclean.data.fingerprints import as_metadata
from ncclean.errors import InputError
from ncclean.explaining.aggregates import Totals, group_sums
from ncclean.explaining.candidates import candidates_of
from ncclean.explaining.cause_table import COMMAND, Cause, write_causes
from ncclean.explaining.described import described
from ncclean.explaining.embedded import Embedded, clusters_path
from ncclean.explaining.exchanges import Exchanges, find_exchanges
from ncclean.explaining.fixes import fixes_of, fixes_path, propose
from ncclean.explaining.folding import fold, patterns_of, write_members
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.own_null import OwnNulls
from ncclean.explaining.pairs import CLUSTERS, Pairs, prepared_pairs
from ncclean.explaining.verdicts import Verdicts, histograms
from ncclean.storage.catalog import first_line
from ncclean.storage.decisions import write_decisions
from ncclean.storage.tables import fingerprints


@dataclass(frozen=True)
class Explained:
    """The result of a search for causes of wrong pairs.

    The estimator may only be worse in `uncertain` groups. `folded` are groups folded into these or
    into causes.

    `pairs` of the table's `rows` have scores. `tested` counts groups, each once for every outcome
    in the table, and pairs of words; the table has no probability of the outcomes in `unknown`.
    `left_out` groups stood out beyond those that could be compared with one another. `fixed` pairs
    have a decision in the file `fixes`, which shifts captions back; None without embeddings.
    """

    causes: tuple[Cause, ...]
    uncertain: tuple[Cause, ...]
    folded: tuple[Cause, ...]
    outcomes: tuple[str, ...]
    rows: int
    pairs: int
    tested: int
    left_out: int
    seconds: float
    out: str
    clusters: str | None = None
    fixes: str | None = None
    fixed: int | None = None
    unknown: tuple[str, ...] = ()
    joined: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "causes": [cause.to_json() for cause in self.causes],
            "uncertain": [group.to_json() for group in self.uncertain],
            "folded": [cause.to_json() for cause in self.folded],
            "outcomes": list(self.outcomes),
            "unknown": list(self.unknown),
            "rows": self.rows,
            "pairs": self.pairs,
            "tested": self.tested,
            "left_out": self.left_out,
            "seconds": round(self.seconds, 2),
            "joined": self.joined,
            "clusters": self.clusters,
            "fixes": self.fixes,
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
    join: Sequence[str] = (),
    memory_limit: str | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Explained:
    """Find groups of pairs that are wrong more often than others, and write them to `out`.

    `embeddings` give image clusters, which are written beside `out`, where conditions read them.
    They also show shifted captions; decisions that shift them back, like those of `ncclean review`,
    are written beside `out`, too. Raises `InputError` for a table without probabilities.
    """
    started = time.perf_counter()
    options = options or ExplainOptions()
    path = stores.location(out)
    clusters, fixes = clusters_path(path), fixes_path(path)
    beside = [str(fixes), str(clusters)] if embeddings else []
    check_free([out, *beside], COMMAND, overwrite)
    embedded = table = aside = None
    with contextlib.ExitStack() as held:
        if embeddings:
            embedded, table = Embedded.open(embeddings, embedding_keys), str(clusters)
            # Earlier clusters stay until there are new causes: the old causes refer to them.
            aside = held.enter_context(published(clusters))
            embedded.write_clusters(aside, options.clusters, options.seed, progress)
        folder = held.enter_context(scratch_folder())
        try:
            with prepared_pairs(
                folder, scores, join, options.by, aside, memory_limit, progress
            ) as pairs:
                search = _find(pairs, options, embedded, table, progress)
        except duckdb.Error as error:
            raise_if_full(folder / "pairs.parquet", error)
            raise InputError(f"the causes cannot be found: {first_line(error)}") from error
    scored = fingerprints(scores)
    metadata = {"pairs": str(pairs.scored), **as_metadata(scored)}
    if search.fixes is not None:
        write_decisions(fixes, search.fixes, COMMAND, scored)
        metadata["fixes"] = fixes.name
    write_causes(path, search.causes, metadata)
    remove_leftovers(path.parent, {path.name})
    listed = [cause for cause in search.causes if cause.folded_into is None]
    return Explained(
        causes=tuple(cause for cause in listed if cause.is_cause),
        uncertain=tuple(cause for cause in listed if not cause.is_cause),
        folded=tuple(cause for cause in search.causes if cause.folded_into is not None),
        outcomes=tuple(outcome.name for outcome in pairs.values.outcomes),
        unknown=tuple(pairs.unknown),
        rows=pairs.rows,
        pairs=pairs.scored,
        tested=search.tested,
        left_out=search.left_out,
        seconds=time.perf_counter() - started,
        out=out,
        clusters=table,
        fixes=None if search.fixes is None else str(fixes),
        fixed=None if search.fixes is None else len(search.fixes),
        joined=dict(pairs.joined),
    )


@dataclass(frozen=True)
class _Search:
    """The causes, uncertain groups, and what is folded into either.

    `fixes` are decisions, None if there cannot be any.
    """

    causes: list[Cause]
    tested: int
    left_out: int
    fixes: pa.Table | None


def _find(
    pairs: Pairs,
    options: ExplainOptions,
    embedded: Embedded | None,
    clusters: str | None,
    progress: Progress,
) -> _Search:
    """Test all groups, choose the causes among those that stand out, and propose fixes.

    `clusters` is where their conditions will find the table of clusters.
    """
    values, connection = pairs.values, pairs.connection
    totals = Totals.read(connection, values)
    groups = []
    for number, kind in enumerate(pairs.kinds):
        progress.advance(number, len(pairs.kinds), "kinds of groups", now=kind.name)
        groups.append(
            group_sums(connection, kind, values.names(), values.own(), totals, options.min_pairs)
        )
    progress.advance(len(pairs.kinds), len(pairs.kinds), "kinds of groups")
    exchanges = Exchanges()
    if embedded is not None:
        progress.say("comparing words")
        exchanges = find_exchanges(connection, options, embedded)
    candidates = candidates_of(groups, totals, values, options)
    listed = (*exchanges.candidates(values), *candidates.listed)
    selected = {candidate.group: (candidate.kind, candidate.value) for candidate in listed}
    numbers = {group: number for number, group in enumerate(selected)}
    group_of = [numbers[candidate.group] for candidate in listed]
    progress.say(f"comparing {counted(len(numbers), 'group')}")
    write_members(connection, list(selected.values()))
    tested = candidates.tested + exchanges.tested
    nulls = None
    if embedded is not None and listed:
        nulls = OwnNulls.read(connection, len(numbers), embedded)
    verdicts = Verdicts(
        listed, group_of, values, totals, options, tested,
        histograms(connection, values, len(numbers)), nulls,
    )  # fmt: skip
    patterns = patterns_of(connection, len(numbers), values.names(), totals)
    preference = [exchanges.kind.name, *(kind.name for kind in pairs.kinds)]
    folded = fold(
        listed, group_of, patterns, options, candidates.log_threshold, preference,
        verdicts.is_cause,
    )  # fmt: skip
    proposals = propose(
        connection, listed, group_of, folded.causes, folded.unsure, values, embedded, progress
    )
    causes = described(
        connection, folded, verdicts, clusters and f"{CLUSTERS}={clusters}", proposals.texts
    )
    fixes = None if embedded is None else fixes_of(connection, proposals.shifts.values())
    return _Search(causes, tested, candidates.left_out, fixes)
