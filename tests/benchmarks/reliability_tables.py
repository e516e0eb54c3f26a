"""Records of `reliability.py` as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from record_tables import heading, line

Record = Mapping[str, Any]
Row = Mapping[str, Any]
_MUTATED = {"rows": "all rows read or named", "failed unit": "shard failed", "refused": "refused"}
_ENDS = ("crash", "hang")
# An attack that costs more than this has a line of its own.
_DEAR_MB, _DEAR_SECONDS = 100, 2.5


def disturbed_table(kills: Record, nodes: Record, store: Record, disk: Record) -> Iterator[str]:
    """What was disturbed how often, and what differed in the end, over all commands."""
    yield from heading(
        "disturbance", "how often", "rows compared", "rows lost", "doubled", "different",
        "files half-written, missing or left",
    )  # fmt: skip
    answers = [{**row, "failed": sum(row["faults"].values())} for row in store["rows"]]
    for name, rows, how_often in (
        ("SIGKILL to all processes", kills["rows"], "kills"),
        ("node of a Ray cluster lost", nodes["rows"], "losses"),
        ("answer of a store failed", answers, "failed"),
        ("disk full", disk["rows"], "full"),
    ):
        figures = (how_often, "rows", "lost", "doubled", "different")
        files = sum(
            row.get(what, 0)
            for row in rows
            for what in ("half_written", "files_missing", "files_left")
        )
        yield line(name, *(f"{_sum(rows, figure):,}" for figure in figures), f"{files:,}")


def mutations_table(record: Record) -> Iterator[str]:
    """How mutated files ended, over all sources."""
    rows = record["rows"]
    yield from heading("mutated files", *_MUTATED.values(), *_ENDS, "rows lost", "slowest")
    ends: Counter[str] = Counter()
    for row in rows:
        ends.update(row["outcomes"])
    known = (*_MUTATED, *_ENDS)
    lost = sum(count for end, count in ends.items() if end not in known)
    cells = (
        f"{count:,}" for count in (_sum(rows, "mutations"), *(ends[end] for end in known), lost)
    )
    yield line(*cells, f"{max(row['slowest'] for row in rows):.2f} s")


def attacks_table(record: Record) -> Iterator[str]:
    """What sources that mean harm came to: all of them, and those that cost most."""
    rows = record["rows"]
    yield from heading(
        "attack", "rows expected", "lost", "other rows", "not said", "no sentence", "MB more",
        "processor s more",
    )  # fmt: skip
    for row in rows:
        if row["megabytes"] > _DEAR_MB or row["seconds"] > _DEAR_SECONDS:
            yield _attacked(row["attack"], [row])
    yield _attacked(f"**all {len(rows)}**", rows)


def _attacked(name: str, rows: Sequence[Row]) -> str:
    counts = (sum(row[one] for row in rows) for one in ("rows", "lost", "others"))
    lists = (sum(len(row[one]) for row in rows) for one in ("unsaid", "problems"))
    megabytes, seconds = (max(row[one] for row in rows) for one in ("megabytes", "seconds"))
    return line(
        name, *(f"{count:,}" for count in (*counts, *lists, max(megabytes, 0))),
        f"{max(seconds, 0):.1f}",
    )  # fmt: skip


_BREAKS = {
    "planted": "chosen before a test was tried",
    "reviewed": "found unnoticed by a review",
    "later": "planted in the code of one day",
}


def breaks_table(record: Record) -> Iterator[str]:
    """How many breaks of meaning the tests notice."""
    yield from heading("breaks", "", "noticed at first", "noticed now")
    for name, title in _BREAKS.items():
        rows = [row for row in record["rows"] if row["set"] == name]
        if rows:
            yield _noticed(title, rows)


def _noticed(name: str, rows: Sequence[Row]) -> str:
    counts = (sum(row[when] == "caught" for row in rows) for when in ("first", "verdict"))
    return line(name, f"{len(rows)}", *map(str, counts))


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(int(row[name]) for row in rows)
