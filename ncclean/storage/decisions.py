"""People's decisions about pairs: Parquet files, JSON lines, and journals of unfinished reviews.

A decision is appended to a journal and synced before it is acknowledged. The journal is in the
hidden working folder beside its `decisions.parquet`, and is written into that file at the end of
the review. Reading the file includes what a killed review left in its journal. The page of a report
saves JSON lines, an object for each decision with the columns of the Parquet file.
"""

from __future__ import annotations

import datetime
import getpass
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import __version__
from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.output_mark import mark
from ncclean.base.schema import DECISIONS
from ncclean.base.small_tables import read_rows
from ncclean.data.fingerprints import FINGERPRINTS, Fingerprints, as_metadata, from_text
from ncclean.errors import InputError
from ncclean.storage.earlier import earlier_lines
from ncclean.storage.entries import Entries
from ncclean.storage.tables import say_changed

_LARGEST_NUMBER = 2**15 - 1  # of a caption, in a table
KEEP, DROP, CORRECT = KINDS = ("keep", "drop", "correct")
NOTE = "note"  # a note on a pair without a decision
_LARGEST_BATCH = 2**53  # in a journal that may be anyone's
_NEEDED, _OPTIONAL = ("uid", "decision", "time"), ("caption_number", "caption", "reviewer", "note")
Pair = tuple[str, int]  # uid and number of the caption


class Decision(NamedTuple):
    """One decision about a pair; `caption` replaces the pair's if the decision is `correct`.

    `note` is a comment of the reviewer; an empty one removes an earlier one.
    """

    uid: str
    caption_number: int
    decision: str
    caption: str | None
    reviewer: str
    time: datetime.datetime
    note: str | None = None

    @property
    def pair(self) -> Pair:
        return self.uid, self.caption_number


def decision_of(
    uid: Any,
    caption_number: Any,
    decision: Any,
    caption: Any,
    reviewer: Any,
    time: Any,
    note: Any = None,
) -> Decision:
    """Build a review decision from untrusted values.

    Raises `ValueError` or `TypeError` for values that no decision has.
    """
    number = 0 if caption_number in (None, "") else caption_number
    if isinstance(number, float) and not number.is_integer():
        raise ValueError(f"caption_number is {number}")
    if isinstance(time, str):
        time = datetime.datetime.fromisoformat(time)
    if not isinstance(time, datetime.datetime):
        raise ValueError("it has no time")
    if not isinstance(uid, str | int):
        raise ValueError("it has no uid")
    if not 0 <= int(number) <= _LARGEST_NUMBER:
        raise ValueError(f"caption_number is {number}")
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.timezone.utc)
    try:
        time = time.astimezone(datetime.timezone.utc)
    except OverflowError:  # past the year 9999 in UTC, not in its own zone
        raise ValueError(f"its time is {time}") from None
    if decision not in (*KINDS, NOTE):
        raise ValueError(f"it takes {', '.join(KINDS)}, got {decision!r}")
    text, note = (one if isinstance(one, str) else None for one in (caption, note))
    if decision != CORRECT:
        text = None  # the pair's own caption, which tables have beside a decision
    if decision == CORRECT and not (text or "").strip():
        raise ValueError("it corrects a caption, and has none")
    for one in (uid, text, reviewer, note):
        str(one).encode()  # half a surrogate pair, which no table can hold, is a `ValueError`
    return Decision(
        str(uid), int(number), str(decision), text, str(reviewer or "unknown"), time, note
    )


def default_reviewer() -> str:
    """Return the user's name, or `unknown` if the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def journal_of(out: UPath) -> UPath:
    """Return the path of the journal of a review that writes its decisions to `out`."""
    return out.parent / WORKING_FOLDER / f"{out.name}.json"


def entries_of(out: UPath) -> UPath:
    """Return the folder of the entries of a review's journal."""
    return journal_of(out).with_suffix(".entries")


def records_of(out: UPath) -> list[dict[str, Any]]:
    """Return the entries of the journal that a killed review of `out` left."""
    return [*earlier_lines(journal_of(out)), *Entries(entries_of(out))]


def record_of(batch: int, decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return the journal entry for a batch of decisions, made and undone together."""
    first = decisions[0]
    record: dict[str, Any] = {
        "batch": batch,
        "decision": first.decision,
        "reviewer": first.reviewer,
        "time": first.time.isoformat(),
        "pairs": [decision.pair for decision in decisions],
    }
    if first.decision == CORRECT:
        record["captions"] = [decision.caption for decision in decisions]
    if any(decision.note is not None for decision in decisions):
        record["notes"] = [decision.note for decision in decisions]
    return record


def replayed(records: Iterable[dict[str, Any]]) -> list[Decision]:
    """Return the decisions of a journal's entries in order, without undone ones."""
    batches: dict[int, list[Decision]] = {}
    for record in records:
        if "undo" in record:
            if (undone := _batch(record["undo"])) is not None:
                batches.pop(undone, None)
        else:
            batches.setdefault(batch_of(record), []).extend(_decisions(record))
    return [decision for batch in batches.values() for decision in batch]


def batch_of(record: dict[str, Any]) -> int:
    """Return the number of the batch of decisions in a journal's entry.

    -1, which nothing undoes, if it has none.
    """
    number = _batch(record.get("batch"))
    return -1 if number is None else number


def _batch(number: object) -> int | None:
    return number if isinstance(number, int) and 0 <= number <= _LARGEST_BATCH else None


def _decisions(record: dict[str, Any]) -> Iterator[Decision]:
    """Parse the decisions of one line; none for an invalid line."""
    try:
        kind, reviewer, pairs = record["decision"], str(record["reviewer"]), record["pairs"]
        captions, notes = (
            record.get(name) or [None] * len(pairs) for name in ("captions", "notes")
        )
        for (uid, number), caption, note in zip(pairs, captions, notes, strict=True):
            yield decision_of(uid, number, kind, caption, reviewer, record["time"], note)
    except (KeyError, TypeError, ValueError):
        return


def latest(decisions: Iterable[Decision]) -> Decision:
    """Return a pair's latest decision with its latest note; at equal times, the last one."""
    decisions = sorted(decisions, key=lambda decision: decision.time)
    *_, last = [one for one in decisions if one.decision != NOTE] or decisions
    *_, note = [None, *(one.note for one in decisions if one.note is not None)]
    return last._replace(note=note)


def read_decisions(path: str, scored: Fingerprints | None = None) -> list[Decision]:
    """Return the decisions of a file in order, with those that a killed review left in its journal.

    Each pair has one decision, the latest. Logs a warning if they are about other versions of the
    `scored` shards: without a uid in the json, another sample may have the name of the one that was
    reviewed. Raises `InputError` for a missing file, or one that is not a table of decisions.
    """
    place = stores.location(path)
    journal = replayed(records_of(place))
    is_journal_alone = journal and not stores.is_file(place)
    decisions = chain(() if is_journal_alone else _rows(path, scored or {}), journal)
    by_pair: dict[Pair, list[Decision]] = {}
    for decision in decisions:
        by_pair.setdefault(decision.pair, []).append(decision)
    return list(map(latest, by_pair.values()))


def write_decisions(
    out: UPath, table: pa.Table, command: str = "review", scored: Fingerprints | None = None
) -> None:
    """Write a table of decisions, whole or not at all; `command` is the one that made it.

    `scored` are the fingerprints of the shards of the pairs. Further columns of the table stay.
    """
    further = [field for field in table.schema if field.name not in DECISIONS.names]
    schema = pa.schema([*DECISIONS, *further])
    metadata = {"made_by": mark(command), "ncclean_version": __version__}
    metadata |= as_metadata(scored or {})
    with published(out) as aside:
        pq.write_table(
            table.cast(schema).replace_schema_metadata(metadata), aside, compression="zstd"
        )


def _rows(path: str, scored: Fingerprints) -> Iterator[Decision]:
    table = read_rows(path, _NEEDED, _OPTIONAL, what="decisions of `ncclean review`")
    say_changed(path, scored, from_text(table.facts.get(FINGERPRINTS)))
    for number, row in enumerate(table.rows, start=1):
        try:
            if not isinstance(row, dict):
                raise TypeError("it is not an object of JSON")
            yield decision_of(*(row.get(name) for name in Decision._fields))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path}, row {number:,}, is not a decision: {error}") from error
