"""A hundred million score rows on a small machine: finalize, queries, a selection, a report.

    python tests/benchmarks scale.rows [--rows 100_000_000] [--shards 100_000] [--json FILE]

And what a driver does with many shards: it lists `--listed` of them and plans an export, and reads
a manifest of `--shards`.

Each step is a process of its own, so that its peak memory is its own. Needs about 450 bytes of
disk per row while it runs.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from process import in_process, resident_bytes
from records import Row, benchmark

LIMIT = "2GB"  # of DuckDB, which with Python around it stays below 4 GB
QUERIES = {
    "failures by kind": "SELECT status, count(*) FROM scores GROUP BY 1",
    "noise by shard, worst ten": (
        "SELECT shard, avg(noise_probability) AS noise FROM scores GROUP BY 1 "
        "ORDER BY noise DESC LIMIT 10"
    ),
    "what three rules keep": (
        "SELECT count(*) FILTER (WHERE osa_weight > 0.5), "
        "count(*) FILTER (WHERE ncu_split = 'retain'), "
        "count(*) FILTER (WHERE disncl_clean) FROM scores"
    ),
    "most suspect hundred": (
        "SELECT uid, url, text, noise_probability FROM scores "
        "WHERE noise_probability > 0.99 ORDER BY similarity LIMIT 100"
    ),
}


def write(folder: Path, rows: int) -> None:
    """The parts of a run that has scored `rows` pairs."""
    from scale import simulated  # with all that it loads, in the step's own process

    simulated.write(folder, rows)


def records(folder: Path, shards: int) -> dict[str, float]:
    """The records of many shards: written, and read again as a resumed run does."""
    from scale import simulated

    return simulated.records(folder, shards)


def finalize(folder: Path) -> None:
    from ncclean_pipelines.score import Score

    Score(shards=[], out=str(folder / "scores"), finalize_only=True).run()


def query(folder: Path, sql: str) -> None:
    from ncclean.storage.joined import query

    query(sql, [str(folder / "scores")], LIMIT).fetchall()


def select(folder: Path) -> None:
    """The best 30 % by the product's own select."""
    from ncclean_pipelines.select import Select

    from ncclean.selection.policy import Policy

    command = Select(
        scores=[str(folder / "scores")],
        out=str(folder / "selection.parquet"),
        policy=Policy(score="similarity", keep_fraction=0.3),
        memory_limit=LIMIT,
    )
    summary = command.run().summary
    if summary.kept != round(0.3 * summary.rows):
        raise AssertionError(f"{summary.kept} selected of {summary.rows}")


def report(folder: Path) -> None:
    from ncclean_pipelines.report import Report

    Report(scores=[str(folder / "scores")], out=str(folder / "report.html")).run()


def listing(folder: Path, shards: int) -> dict[str, float]:
    """The shards of a folder as references, and an export of a third of their samples planned."""
    from ncclean.data.shards import resolve_shards
    from ncclean.exporting.plan import plan_export

    names = folder / "listed"
    names.mkdir()
    for number in range(shards):
        (names / f"{number:07d}.tar").touch()
    before, begin = resident_bytes(), time.process_time()
    found = resolve_shards([str(names)])
    listed, held = time.process_time() - begin, resident_bytes() - before
    tasks = plan_export({shard.name: 3333 for shard in found}, found, 10_000)
    figures = {
        "seconds": listed,
        "plan_seconds": time.process_time() - begin - listed,
        "tasks": len(tasks),
        "bytes_per_shard": held / shards,
        "bytes_per_shard_planned": (resident_bytes() - before) / shards,
    }
    shutil.rmtree(names)
    return figures


def steps(
    rows: int = 100_000_000, shards: int = 100_000, listed: int = 1_000_000,
    scratch: Path | None = None,
) -> Iterator[Row]:  # fmt: skip
    """A row for each step; `shards` are those of the large run, `listed` those of a folder."""
    with tempfile.TemporaryDirectory(prefix="ncclean-scale-", dir=scratch) as name:
        folder = Path(name)
        calls: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
            ("write parts", write, (rows,)),
            ("finalize", finalize, ()),
            *((f"query: {name}", query, (sql,)) for name, sql in QUERIES.items()),
            ("top 30 % selection", select, ()),
            ("report", report, ()),
            (f"{listed:,} shards listed", listing, (listed,)),
            (f"records of {shards:,} shards", records, (shards,)),
        ]
        for step, function, arguments in calls:
            figures = in_process(function, folder, *arguments)
            row = {"step": step, **figures, **figures.pop("result", {})}
            if step in ("write parts", "finalize"):
                files = (folder / "scores").rglob("*")
                row["bytes_per_row"] = sum(f.stat().st_size for f in files if f.is_file()) / rows
            yield row


if __name__ == "__main__":
    benchmark(steps, memory_limit=LIMIT)
