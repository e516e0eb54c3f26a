"""Rows lost or doubled when commands are killed, nodes leave, stores refuse, files are broken or
disks full.

    python tests/benchmarks/reliability.py --only kills --out FOLDER --record FILE

Every interrupted run is a line of FOLDER/PART.jsonl, with its seed; the same command goes on where
it was stopped, and the record counts by command.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import reliability_jobs
from records import CODE_VERSION, ROOT, make_record, write_record

PARTS = {
    "kills": 20, "mutations": 100_000, "attacks": 1000, "disk": 10, "store": 5, "nodes": 20,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=PARTS, required=True, help="what to do to them")
    parser.add_argument("--out", type=Path, required=True, help="where to work")
    parser.add_argument("--count", type=int, help=f"how often (default: {PARTS})")
    parser.add_argument("--record", type=Path, help="write a record")
    args = parser.parse_args()
    count = args.count or PARTS[args.only]
    folder = args.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))  # the tests' generators, stores and clusters
    reliability_jobs.prepare(folder)
    part = importlib.import_module(f"reliability_{args.only}")
    rows = run(part, folder, folder / f"{args.only}.jsonl", count)
    summary = part.summary(rows)
    for row in summary:
        print(json.dumps(row))
    if args.record is not None:
        commits = list(dict.fromkeys(row["commit"] for row in rows))
        settings = {"count": count, "seeds": "the name and the number of each run"}
        write_record(args.record, make_record(summary, settings=settings, commits=commits))


def run(part: Any, folder: Path, log: Path, count: int) -> list[dict[str, Any]]:
    """All rows, those of an earlier start first."""
    text = log.read_text("utf-8") if log.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    with log.open("a", encoding="utf-8") as stream:
        for row in part.measure(folder, count, list(rows)):
            row = {**row, "at": round(time.time()), "commit": CODE_VERSION["commit"]}
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    main()
