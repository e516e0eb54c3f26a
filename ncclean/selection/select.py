"""Apply a policy to a score table: the selection file, and counts of kept and dropped pairs.

DuckDB does all the work. Its limit bounds the memory, and no rows pass through Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
from upath import UPath

from ncclean.base.atomic import published, raise_if_full, remove_leftovers
from ncclean.base.estimates import UNKNOWN, Estimate
from ncclean.data.fingerprints import as_metadata
from ncclean.errors import InputError
from ncclean.scoring.vague_rate import NO_KNOWN_MISMATCHES, tells_nothing, why_vague
from ncclean.selection.decided import Conflict, Decisions
from ncclean.selection.drop_parts import check_parts
from ncclean.selection.policy import Policy
from ncclean.selection.selection_query import SelectionQuery
from ncclean.storage.catalog import first_line
from ncclean.storage.joined import JoinedScores
from ncclean.storage.tables import fingerprints, table_metadata


@dataclass(frozen=True)
class SelectionSummary:
    """The pairs that a policy kept and dropped.

    `dropped_by_reason` counts each dropped pair under the first filter it failed, in the order of
    the chain. `expected_mismatched_*` are sums of `noise_probability`, under `drop_parts` of the
    worst sentence that a caption keeps; None if the table has none. They exclude pairs without
    scores. `joined` counts the rows of the scores with a match in each joined table. `drawn` counts
    the rows written when pairs are drawn, some several times. `measured_noise_kept` is the share of
    mismatched pairs among the kept by the answers of an audit. `captions_mended` lost
    `parts_dropped` of all `parts` of the kept pairs' captions, None without `drop_parts`. `decided`
    counts the pairs of the table that people decided about, by decision, None without decisions;
    `decided_elsewhere` are decisions on pairs that the table lacks, `decided_alike` pairs that
    share a decision because they share a uid, `conflicts` pairs about which files differ, the first
    of them in `conflicting`.
    """

    rows: int
    kept: int
    dropped: int
    dropped_by_reason: dict[str, int]
    expected_mismatched_kept: float | None
    expected_mismatched_dropped: float | None
    weight_sum: float
    forget: int
    joined: dict[str, int]
    out: str
    drawn: int | None = None
    measured_noise_kept: Estimate = UNKNOWN
    captions_mended: int | None = None
    parts_dropped: int | None = None
    parts: int | None = None
    decided: dict[str, int] | None = None
    decided_elsewhere: int = 0
    decided_alike: int = 0
    conflicts: int = 0
    conflicting: tuple[Conflict, ...] = ()


def select(
    paths: Sequence[str],
    out: UPath,
    policy: Policy,
    *,
    dedup: str | None = None,
    decisions: Sequence[str] = (),
    join: Sequence[str] = (),
    memory_limit: str | None = None,
) -> SelectionSummary:
    """Apply a selection policy to score files, and write the selection to `out`.

    `out` is Parquet with the columns `uid, shard, key, weight, split` and, where the scores have
    them, those of `ncclean.data.samples.Place`, in the order of the input. With `drop_parts` it has
    `caption`, the mended caption, null if unchanged; it also has corrected captions of `decisions`.
    `decisions` are files of `ncclean review`: a person's decision overrides the policy, except for
    pairs without scores, and for `sample`, which draws from the rest.

    If images have several captions, `caption_number` and `caption_rank` follow. `dedup` is a table
    of `ncclean neighbours`; of each group of near-duplicates the best pair by the policy's score
    (else by `similarity`) is kept. `join` are tables whose columns the policy may read, each `PATH`
    or `NAME=PATH`; see `ncclean.storage.joined`. Ties are broken by uid, then by the order of the
    input. Raises `InputError` for columns that the table lacks, SQL that DuckDB rejects, tables
    that cannot be joined, weights that are negative, or a rule by noise probabilities that tell
    nothing.
    """
    if policy.dedup_by is not None and dedup is None:
        raise InputError("--dedup-by needs --dedup")
    beside = {"neighbours": [dedup]} if dedup is not None else {}
    with (
        published(out) as aside,
        JoinedScores.open(paths, join, memory_limit, beside=beside, writable=aside) as scores,
    ):
        try:
            decided = None
            if decisions:
                decided = Decisions.read(decisions, scored=fingerprints(paths))
            selection = SelectionQuery(scores, policy, dedup is not None, decided)
            if policy.by_noise_probability and selection.has_scored:
                _raise_if_unknown(paths)
            if policy.drop_parts:
                check_parts(scores.connection)
            summary = selection.write(aside, _of_source(paths))
        except duckdb.Error as error:
            raise_if_full(UPath(aside), error)
            raise InputError(f"the selection failed: {first_line(error)}") from error
    remove_leftovers(out.parent, {out.name})
    return SelectionSummary(**summary, out=str(out))


def _of_source(paths: Sequence[str]) -> dict[str, str]:
    """Return what later readers of the shards need to know of how and when they were scored.

    These are the keys by which all of the tables have read pictures and captions, as they record
    them, and the fingerprints of the shards.
    """
    first, *others = (table_metadata(path) for path in paths)
    return as_metadata(fingerprints(paths)) | {
        name: first[name]
        for name in ("image_key", "caption_key")
        if name in first and all(one.get(name) == first[name] for one in others)
    }


def _raise_if_unknown(paths: Sequence[str]) -> None:
    """Raise `InputError` if a table's noise rate may be anything, and nobody audited it."""
    for path in paths:
        metadata = table_metadata(path)
        if "audited" in metadata:
            continue
        rate = Estimate.of_fields(metadata, "noise_rate")
        why = why_vague(rate) if tells_nothing(rate) else None
        if metadata.get("noise_rate_low") == str(math.nan):  # else not of this version
            why = NO_KNOWN_MISMATCHES
        if why is not None:
            raise InputError(
                f"{path}: {why} To take the best part of the pairs all the same: --score "
                "similarity --keep-fraction 0.5"
            )
