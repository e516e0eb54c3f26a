"""Propose fixes for causes: shift captions back, or exchange a word for another.

Decisions that return shifted captions to their images are beside the table of causes. They are
those of `ncclean.storage.decisions`, with the shard and the key of each pair: an export uses them
without the score table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import duckdb
import numpy as np
import pyarrow as pa
from upath import UPath

from ncclean.base import stores
from ncclean.base.progress import Progress
from ncclean.base.schema import DECISIONS
from ncclean.base.small_tables import read_parquet
from ncclean.errors import InputError
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.cause_table import COMMAND, read_causes
from ncclean.explaining.embedded import Embedded
from ncclean.explaining.outcomes import MISMATCH, NEAR_MISS
from ncclean.explaining.pairs import Values
from ncclean.explaining.shifts import Shift, find_shift, is_ordered, right_cosine
from ncclean.storage.catalog import columns_of
from ncclean.storage.decisions import CORRECT, DROP, read_decisions
from ncclean.storage.quoting import natural_order
from ncclean.storage.tables import table_metadata

FIXES = pa.schema([*DECISIONS, ("shard", pa.string()), ("key", pa.string())])
_RUNS = pa.schema([("place", pa.int64()), ("source", pa.int64())])
_NOT_BLANK = r"[^\pZ\t-\r\x1c-\x1f\x{85}]"  # what `str.strip` leaves
# This share of a cause's pairs with a probably wrong word must have the same two words.
_LEAST_SHARE = 0.2
_FEWEST = 10
_NAME = "concat_ws('/', shard, key)"


@dataclass(frozen=True)
class Proposals:
    """Proposed fixes of causes, by number of the candidate: in words, and as shifts of captions."""

    texts: Mapping[int, str]
    shifts: Mapping[int, Shift]


def propose(
    connection: duckdb.DuckDBPyConnection,
    candidates: Sequence[Candidate],
    group_of: Sequence[int],
    causes: Sequence[int],
    unsure: Sequence[int],
    values: Values,
    embedded: Embedded | None,
    progress: Progress,
) -> Proposals:
    """Propose fixes of causes; shifts of captions only with embeddings and cosines.

    `group_of` is the number of each candidate's group in the table `members`; `causes` and `unsure`
    are numbers of candidates. Captions may be shifted in `unsure` groups, too: these fit other
    images, whatever the estimator's quality.
    """
    texts: dict[int, str] = {}
    ordered = {}
    columns = set(columns_of(connection, "pairs"))
    for cause in (*causes, *unsure):
        candidate = candidates[cause]
        name, kind = values.outcomes[candidate.outcome].name, candidate.kind
        if candidate.rate is not None:
            texts[cause] = f"{kind.label(candidate.value)} stand for each other"
        elif name == NEAR_MISS and cause in causes and {"suspect_word", "better_word"} <= columns:
            text = _exchanged(connection, group_of[cause], values.of(candidate.outcome))
            if text is not None:
                texts[cause] = text
        elif name == MISMATCH and is_ordered(kind.name, kind.is_by):
            ordered[group_of[cause]] = cause
    shifts = {}
    if ordered and embedded is not None and "similarity" in columns:
        progress.say("looking for shifted captions")
        first = candidates[next(iter(ordered.values()))]
        right = right_cosine(connection, values.of(first.outcome))
        wanted = (
            "SELECT member, place, shard, key, caption_number FROM members JOIN pairs USING "
            f"(place) WHERE member IN ({', '.join(map(str, ordered))})"
        )
        for group, arrays in embedded.vectors(connection, wanted).items():
            shift = _shift_of(connection, group, arrays, right)
            if shift is not None:
                shifts[ordered[group]] = shift
                texts[ordered[group]] = str(shift)
    return Proposals(texts, shifts)


def _shift_of(
    connection: duckdb.DuckDBPyConnection,
    group: int,
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    right: float,
) -> Shift | None:
    """Return the shift of a group, in table order or in that of file managers."""
    places, image, text = arrays
    named = connection.execute(
        f"SELECT place FROM members JOIN pairs USING (place) WHERE member = {group} "
        f"ORDER BY {natural_order(_NAME)}, coalesce(caption_number, 0)"
    ).fetchnumpy()["place"]
    order = np.searchsorted(places, named[np.isin(named, places)])
    shifts = [find_shift(places, image, text, right)]
    if not np.array_equal(order, np.arange(len(places))):
        shift = find_shift(places[order], image[order], text[order], right)
        shifts.append(shift and dataclasses.replace(shift, is_by_name=True))
    possible = [shift for shift in shifts if shift is not None]
    return max(possible, key=lambda shift: shift.right_after, default=None)


def _exchanged(connection: duckdb.DuckDBPyConnection, group: int, value: str) -> str | None:
    """Return the two words that most near misses of a group have in common; None if no two.

    `value` is the column of their probability in the view `pairs`.
    """
    row = connection.execute(
        "SELECT suspect_word, better_word, count(*) AS pairs, sum(count(*)) OVER () AS all_pairs "
        f"FROM members JOIN pairs USING (place) WHERE member = {group} AND {value} >= 0.5 "
        "AND suspect_word IS NOT NULL AND better_word IS NOT NULL "
        "GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 1"
    ).fetchone()
    if row is None or row[2] < max(_FEWEST, _LEAST_SHARE * row[3]):
        return None
    suspect, better, pairs, of_all = row
    return f"{suspect} stands for {better} in {pairs:,} of {of_all:,} captions with a wrong word"


def fixes_path(causes: UPath) -> UPath:
    """Return the path of the decisions beside a table of causes."""
    return causes.with_name(causes.name.removesuffix(".parquet") + ".fixes.parquet")


def fixes_of(connection: duckdb.DuckDBPyConnection, shifts: Iterable[Shift]) -> pa.Table | None:
    """Return review decisions that undo shifts of captions; None without uids or captions.

    Each pair of a run gets the right caption, or is dropped if that is missing. Reads the view
    `pairs`. A pair in two runs gets the decision of the first.
    """
    if not {"text", "uid", "key"} <= set(columns_of(connection, "pairs")):
        return None
    runs = pa.concat_tables([_RUNS.empty_table(), *map(_run, shifts)])
    connection.register("shifted", runs.append_column("rank", pa.array(range(len(runs)))))
    decisions = connection.sql(
        "SELECT pair.uid, coalesce(pair.caption_number, 0) AS caption_number, "
        f"if(regexp_matches(other.text, '{_NOT_BLANK}'), '{CORRECT}', '{DROP}') AS decision, "
        f"if(decision = '{CORRECT}', other.text, NULL) AS caption, NULL AS note, "
        f"'ncclean {COMMAND}' AS reviewer, pair.shard, pair.key "
        "FROM shifted JOIN pairs AS pair ON pair.place = shifted.place "
        "LEFT JOIN pairs AS other ON other.place = shifted.source "
        "QUALIFY row_number() OVER (PARTITION BY pair.shard, pair.key, "
        "coalesce(pair.caption_number, 0) ORDER BY rank) = 1 ORDER BY rank"
    ).to_arrow_table()
    connection.unregister("shifted")
    time = pa.array([datetime.now(timezone.utc)] * len(decisions), FIXES.field("time").type)
    return decisions.append_column("time", time).select(FIXES.names).cast(FIXES)


def _run(shift: Shift) -> pa.Table:
    return pa.table([shift.places, shift.sources], _RUNS)


def read_fixes(causes: str) -> tuple[str, int]:
    """Return the decisions file of a table of causes, and how many captions it corrects.

    Raises `InputError` if `ncclean explain` wrote the table without decisions.
    """
    read_causes(causes)
    path = str(fixes_path(stores.location(causes)))
    if "fixes" not in table_metadata(causes):
        raise InputError(
            f"{causes} has no shifted captions to mend: run `ncclean explain` with --embeddings, "
            "on scores that have captions"
        )
    kinds = [decision.decision for decision in read_decisions(path)]
    table = read_parquet(path, ("shard", "key"), what=f"decisions of `ncclean {COMMAND}`")
    if table.column("shard").null_count or table.column("key").null_count:
        raise InputError(
            f"{path} is not as `ncclean {COMMAND}` wrote it: a shard or key is missing"
        )
    return path, kinds.count(CORRECT)
