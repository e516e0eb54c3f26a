"""Records of `reliability.py` as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from record_tables import heading, line

Record = Mapping[str, Any]
Row = Mapping[str, Any]
_ROWS = ("lost", "doubled", "different")
_FILES = ("files_missing", "files_left")


def kills_table(record: Record) -> Iterator[str]:
    """SIGKILLs by command, and what differed in the end."""
    yield from _counted(
        record["rows"],
        {"kills": "kills", "before_first_file": "before the first file", "runs": "runs"},
        {"half_written": "half-written files seen"},
    )


def nodes_table(record: Record) -> Iterator[str]:
    """Nodes lost by command."""
    yield from _counted(
        record["rows"],
        {"losses": "nodes lost", "runs": "runs", "ended_with_an_error": "ended with an error"},
        {"half_written": "half-written files seen"},
    )


def store_table(record: Record) -> Iterator[str]:
    """Answers that failed by command."""
    rows = [{**row, "failed": sum(row["faults"].values())} for row in record["rows"]]
    yield from _counted(
        rows,
        {
            "runs": "runs",
            "requests": "requests",
            "failed": "failed answers",
            "started_again": "started again",
        },
        {},
    )


def disk_table(record: Record) -> Iterator[str]:
    """Full disks by command."""
    yield from _counted(
        record["rows"],
        {"full": "full disks", "one_sentence": "ended with the sentence"},
        {"half_written": "half-written files seen"},
    )


def mutations_table(record: Record) -> Iterator[str]:
    """How mutated files ended, by source."""
    names = {"rows": "all rows read or named", "failed unit": "shard failed", "refused": "refused"}
    rows = record["rows"]
    yield from heading(
        "source", "mutated files", *names.values(), "crash", "hang", "rows lost", "slowest"
    )
    total: Counter[str] = Counter()
    for row in rows:
        total.update({"mutations": row["mutations"], **row["outcomes"]})
        yield _mutated(row["source"], {"mutations": row["mutations"], **row["outcomes"]}, row)
    yield _mutated("**all**", total, {"slowest": max(row["slowest"] for row in rows)})


def attacks_table(record: Record) -> Iterator[str]:
    """What sources that mean harm came to: rows, and the most that any command took."""
    rows = record["rows"]
    yield from heading(
        "attack", "rows expected", "rows lost", "other rows", "not said", "no sentence", "MB more",
        "processor s more",
    )  # fmt: skip
    for row in rows:
        yield _attacked(row["attack"], [row])
    yield _attacked("**all**", rows)


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


def _mutated(name: str, counts: Mapping[str, int], row: Row) -> str:
    known = ("mutations", "rows", "failed unit", "refused", "crash", "hang")
    cells = [f"{counts.get(one, 0):,}" for one in known]
    lost = sum(count for one, count in counts.items() if one not in known)
    return line(name, *cells, f"{lost:,}", f"{row['slowest']:.2f} s")


def _counted(
    rows: Sequence[Row], before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[str]:
    """A line for each command, and one with the sums."""
    figures = {
        **before,
        "rows": "rows compared",
        **{name: f"rows {name}" for name in _ROWS},
        **after,
        "files": "files missing or left",
    }
    summed = [{**row, "files": sum(row[name] for name in _FILES)} for row in rows]
    yield from heading("command", *figures.values())
    for row in summed:
        yield line(f"`{row['command']}`", *(f"{row[name]:,}" for name in figures))
    yield line("**all**", *(f"{_sum(summed, name):,}" for name in figures))


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(int(row[name]) for row in rows)
