"""Records of `reliability.py` as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]
Row = Mapping[str, Any]
_ENDS = {
    "rows": "had all rows read or named",
    "failed unit": "were reported as failed shards",
    "refused": "were refused",
    "crash": "ended in a crash",
    "hang": "took more than 20 s",
}


def disturbed_line(kills: Record, nodes: Record, store: Record, disk: Record) -> Iterator[str]:
    """What was disturbed how often, and what differed in the end, over all commands."""
    answers = [{**row, "failed": sum(row["faults"].values())} for row in store["rows"]]
    wrong = files = 0
    counts = []
    for name, rows, how_often in (
        ("times SIGKILL to all processes", kills["rows"], "kills"),
        ("lost nodes of a Ray cluster", nodes["rows"], "losses"),
        ("failed answers of a store", answers, "failed"),
        ("full disks", disk["rows"], "full"),
    ):
        wrong += sum(_sum(rows, figure) for figure in ("lost", "doubled", "different"))
        files += sum(
            row.get(what, 0)
            for row in rows
            for what in ("half_written", "files_missing", "files_left")
        )
        counts.append(f"{_sum(rows, how_often):,} {name} ({_sum(rows, 'rows'):,} rows compared)")
    yield (
        f"{', '.join(counts)}. Rows lost, doubled or different: {wrong}. Files half-written, "
        f"missing or left: {files}."
    )


def mutations_line(record: Record) -> Iterator[str]:
    """How mutated files ended, over all sources."""
    rows = record["rows"]
    ends: Counter[str] = Counter()
    for row in rows:
        ends.update(row["outcomes"])
    lost = sum(count for end, count in ends.items() if end not in _ENDS)
    yield (
        f"Of {_sum(rows, 'mutations'):,} mutated files, "
        + ", ".join(f"{ends[end]:,} {meaning}" for end, meaning in _ENDS.items())
        + f", and {lost} lost a row. The slowest read took "
        f"{max(row['slowest'] for row in rows):.1f} s."
    )


def attacks_line(record: Record) -> Iterator[str]:
    """What sources that mean harm came to, and what the dearest ones cost."""
    rows = record["rows"]
    lost, others = (_sum(rows, one) for one in ("lost", "others"))
    unsaid, problems = (sum(len(row[one]) for row in rows) for one in ("unsaid", "problems"))
    large, slow = (max(rows, key=lambda row: row[cost]) for cost in ("megabytes", "seconds"))
    yield (
        f"{len(rows)} attacks, {_sum(rows, 'rows'):,} rows. Rows lost: {lost}; with an unexpected "
        f"status: {others}; failed shards that were not named: {unsaid}; commands that ended with "
        f"a traceback: {problems}. Beyond an ordinary source, the most memory was "
        f"{large['megabytes']:,.0f} MB ({large['attack']}), the most processor time "
        f"{slow['seconds']:.1f} s ({slow['attack']})."
    )


def breaks_line(record: Record) -> Iterator[str]:
    """How many breaks of meaning the tests noticed, of those that nobody chose by the tests."""
    first, now, later = (
        [row for row in record["rows"] if row["set"] == name and row[when] == "caught"]
        for name, when in (("planted", "first"), ("planted", "verdict"), ("later", "first"))
    )
    totals = Counter(row["set"] for row in record["rows"])
    yield (
        f"Of {totals['planted']} mistakes the tests noticed {len(first)} at first, and notice "
        f"{len(now)} now. Of {totals['later']} more, planted later, they noticed "
        f"{len(later)}: expect that of new code."
    )


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(int(row[name]) for row in rows)
