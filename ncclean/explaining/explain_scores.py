"""The search for causes: from a score table to the table of causes, step by step, resumable.

Each step leaves a file in a working folder beside the output: the clusters, the pairs with their
values, the sums by group of each kind, the members of the groups that stand out. A run that was
interrupted goes on after the last of them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import raise_if_full, remove_leftovers
from ncclean.base.output_mark import check_free
from ncclean.base.progress import SILENT, Progress
from ncclean.errors import InputError
from ncclean.explaining.aggregates import Totals
from ncclean.explaining.candidates import candidates_of
from ncclean.explaining.cause_table import Cause, write_causes
from ncclean.explaining.clusters import cluster_once, clusters_path
from ncclean.explaining.described import described
from ncclean.explaining.exchanges import Exchanges, find_exchanges
from ncclean.explaining.fixes import fixes_of, fixes_path, write_fixes
from ncclean.explaining.folding import fold
from ncclean.explaining.members import patterns_of, write_members
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.own_null import OwnNulls
from ncclean.explaining.prepared_pairs import PreparedPairs, prepare_pairs
from ncclean.explaining.proposals import propose
from ncclean.explaining.saved_sums import kinds_present, saved_sums
from ncclean.explaining.verdicts import Verdicts, histograms
from ncclean.explaining.working_folder import COMMAND, Work, working_folder
from ncclean.storage.catalog import first_line


@dataclass(frozen=True)
class Explained:
    """Result of the search: `causes`, `uncertain` groups, and those folded into either.

    The estimator may only be worse in `uncertain` groups.

    `rows` of the table, `pairs` of them with scores, `tested` groups, each once for every outcome
    that the table tells about, and pairs of words; of the outcomes in `unknown` it has no
    probability. `left_out` groups stood out beyond those that could be compared with one another.
    `fixed` pairs have a decision in the file `fixes`, which shifts captions back; None without
    embeddings.
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
    identity: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Explained:
    """Find groups of pairs that are wrong more often than others, and write them to `out`.

    `embeddings` give image clusters, which are written beside `out`: conditions read them from
    there. They also tell which captions were shifted; decisions that shift them back, as those of
    `ncclean review`, are written beside `out` too. `identity` is what the result depends on; an
    interrupted run is resumed if it is the same. Raises `InputError` for a table without
    probabilities, and `ResumeError` for the working folder of another run.
    """
    begin = time.perf_counter()
    options = options or ExplainOptions()
    path = stores.location(out)
    clusters, fixes = clusters_path(path), fixes_path(path)
    check_free([out, *([str(fixes)] if embeddings else [])], COMMAND, overwrite)
    with working_folder(path, identity or {}, overwrite) as work, _errors(work):
        table = None
        if embeddings:
            cluster_once(work, clusters, embeddings, embedding_keys, options, progress)
            table = str(clusters)
        pairs = prepare_pairs(work, scores, join, options.by, table, memory_limit, progress)
        found = _find(pairs, options, embeddings, embedding_keys, progress)
        metadata = {"pairs": str(pairs.scored)}
        has_fixes = bool(embeddings) and found.fixes is not None
        if has_fixes:
            write_fixes(fixes, found.fixes)
            metadata["fixes"] = fixes.name
        write_causes(path, found.causes, metadata)
    remove_leftovers(path.parent, {path.name})
    listed = [cause for cause in found.causes if cause.folded_into is None]
    return Explained(
        causes=tuple(cause for cause in listed if cause.is_cause),
        uncertain=tuple(cause for cause in listed if not cause.is_cause),
        folded=tuple(cause for cause in found.causes if cause.folded_into is not None),
        outcomes=tuple(outcome.name for outcome in pairs.values.outcomes),
        unknown=tuple(pairs.unknown),
        rows=pairs.rows,
        pairs=pairs.scored,
        tested=found.tested,
        left_out=found.left_out,
        seconds=time.perf_counter() - begin,
        out=out,
        clusters=str(clusters) if embeddings else None,
        fixes=str(fixes) if has_fixes else None,
        fixed=len(found.fixes) if has_fixes and found.fixes is not None else None,
        joined=dict(pairs.joined),
    )


@dataclass(frozen=True)
class _Found:
    """The causes, uncertain groups, and what is folded into either.

    `fixes` are decisions, None where none can be.
    """

    causes: list[Cause]
    tested: int
    left_out: int
    fixes: pa.Table | None


def _find(
    pairs: PreparedPairs,
    options: ExplainOptions,
    embeddings: Sequence[str],
    keys: tuple[str, str] | None,
    progress: Progress,
) -> _Found:
    """Test all groups, choose the causes among those that stand out, and say how to mend them."""
    values = pairs.values
    with pairs.opened() as connection:
        kinds = kinds_present(connection, pairs)
        totals = Totals.read(connection, values)
        groups = saved_sums(
            pairs.work, connection, kinds, values, totals, options.min_pairs, progress
        )
        exchanges = Exchanges()
        if embeddings:
            progress.say("comparing words")
            exchanges = find_exchanges(connection, options, embeddings, keys)
    candidates = candidates_of(groups, totals, values, options)
    listed = (*exchanges.candidates(values), *candidates.listed)
    selected = {candidate.group: (candidate.kind, candidate.value) for candidate in listed}
    numbers = {group: number for number, group in enumerate(selected)}
    group_of = [numbers[candidate.group] for candidate in listed]
    progress.say(f"comparing {len(numbers):,} groups with one another")
    write_members(pairs, list(selected.values()))
    with pairs.opened(members=True) as connection:
        tested = candidates.tested + exchanges.tested
        nulls = None
        if embeddings and listed:
            nulls = OwnNulls.read(connection, len(numbers), embeddings, keys)
        verdicts = Verdicts(
            listed, group_of, values, totals, options, tested,
            histograms(connection, values, len(numbers)), nulls,
        )  # fmt: skip
        patterns = patterns_of(connection, len(numbers), values.names(), totals)
        preference = [exchanges.kind.name, *(kind.name for kind in kinds)]
        folded = fold(
            listed, group_of, patterns, options, candidates.log_threshold, preference,
            verdicts.is_cause,
        )  # fmt: skip
        proposals = propose(
            connection, listed, group_of, folded.causes, values, embeddings, keys,
            progress,
        )  # fmt: skip
        causes = described(connection, folded, verdicts, pairs.cluster_table, proposals.texts)
        fixes = fixes_of(connection, proposals.shifts.values())
        return _Found(causes, tested, candidates.left_out, fixes)


@contextlib.contextmanager
def _errors(work: Work) -> Iterator[None]:
    """Turn DuckDB's errors into `InputError`."""
    try:
        yield
    except duckdb.Error as error:
        raise_if_full(UPath(work.folder), error)
        raise InputError(f"the causes cannot be found: {first_line(error)}") from error
