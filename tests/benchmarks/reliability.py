"""Rows lost or doubled when commands are killed, nodes leave, stores refuse, files are broken or
disks full.

    python tests/benchmarks/reliability.py --only kills --out FOLDER --record FILE

Every interrupted run is a line of FOLDER/PART.jsonl, with its seed; the same command goes on where
it was stopped, and the record counts by command.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import reliability_jobs
from records import CODE_VERSION, ROOT, Row, benchmark

PARTS = {
    "kills": 20, "mutations": 100_000, "attacks": 1000, "disk": 10, "store": 5, "nodes": 20,
}  # fmt: skip


def reliability(only: str, out: Path, count: int | None = None) -> Iterator[Row]:
    """The summary of one part, each run of it disturbed `count` times."""
    folder, times = out.resolve(), count or PARTS[only]
    folder.mkdir(parents=True, exist_ok=True)
    reliability_jobs.prepare(folder)
    part = importlib.import_module(f"reliability_{only}")
    log = folder / f"{only}.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    with log.open("a", encoding="utf-8") as stream:
        for row in part.measure(folder, times, list(rows)):
            rows.append({**row, "at": round(time.time()), "commit": CODE_VERSION["commit"]})
            print(json.dumps(rows[-1]), file=stream, flush=True)
    yield from part.summary(rows)
    commits = list(dict.fromkeys(row["commit"] for row in rows))
    settings = {"count": times, "seeds": "the name and the number of each run"}
    return {"settings": settings, "commits": commits}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the tests' generators, stores and clusters
    benchmark(reliability)
