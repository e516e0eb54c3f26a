"""The record of `compare.py` as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from record_tables import heading, line, percent

Record = Mapping[str, Any]
Row = Mapping[str, Any]


def speed_lines(record: Record) -> Iterator[str]:
    """Pairs for each second of a core, and the ratio to ncclean in fp32 in the same run."""
    rows = [row for row in _rows(record, "speed") if row["model"] == "ViT-B-32"]
    ours = next(row["pairs_per_core_second"] for row in rows if row["tool"] == "ncclean")
    for row in rows:
        speed = row["pairs_per_core_second"]
        yield (
            f"- {_tool(row)}: {speed:,.1f} pairs/s and core ({speed / ours:.2f}x), "
            f"{row['peak_mib']:,.0f} MiB"
        )


def broken_table(record: Record) -> Iterator[str]:
    """What broken samples and shards cost."""
    yield from heading("tool", "usable pairs scored", "unusable samples named", "unusable scored")
    for row in _rows(record, "broken"):
        yield line(
            row["tool"],
            f"{row['usable_scored']} of {row['usable']}",
            f"{row['unusable_named']} of {row['unusable']}",
            f"{row['unusable_scored']} of {row['unusable']}",
        )


def kill_line(record: Record) -> Iterator[str]:
    """SIGKILL in the middle, and the same command again."""
    rows = _rows(record, "kill")
    shown = (
        f"{row['tool']} had kept {row.get('pairs_in_parts', 0):,} of {row['pairs']:,} pairs and "
        f"took {row['processor_again']:.0f} core seconds to finish "
        f"({row['processor_undisturbed']:.0f} undisturbed)"
        + (
            f" and left part of its result in place ({', '.join(row['visible_after_kill'])})"
            if row["visible_after_kill"]
            else ""
        )
        for row in rows
    )
    wrong = sum(row["missing"] + row["doubled"] for row in rows)
    yield f"{'; '.join(shown)}. Pairs missing or doubled: {wrong}."


def kept_table(record: Record) -> Iterator[str]:
    """What each tool's own rule keeps."""
    yield from heading("tool", "rule", "matched lost", "mismatched kept")
    for row in _rows(record, "kept"):
        clean = row["pairs"] - row["noisy"]
        yield line(
            row["tool"],
            row["rule"],
            percent(1 - (row["kept"] - row["kept_noisy"]) / clean),
            percent(row["kept_noisy"] / row["noisy"]),
        )


def duplicates_lines(record: Record) -> Iterator[str]:
    """Which known copies are found."""
    for row in _rows(record, "duplicates"):
        found = ", ".join(f"{found} {kind}" for kind, (found, _) in row["copies"].items())
        yield (
            f"- {row['tool']}: {found}; {row['alone_flagged']} of {row['alone']:,} images without "
            f"a copy flagged; {row['processor_seconds']:.0f} core seconds"
        )


def _rows(record: Record, kind: str) -> list[Row]:
    return [row for row in record["rows"] if row["kind"] == kind]


def _tool(row: Row) -> str:
    precision = {"ncclean": "ncclean, fp32", "ncclean, auto precision": "ncclean, default (bf16)"}
    return precision.get(row["tool"], row["tool"])


FIGURES: dict[str, Callable[[Record], Iterable[str]]] = {
    "compare-broken": broken_table,
    "compare-duplicates": duplicates_lines,
    "compare-kept": kept_table,
    "compare-kill": kill_line,
    "compare-speed": speed_lines,
}
