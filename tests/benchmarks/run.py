"""Benchmarks of ncclean: ratios within one run, on whatever machine this is.

    python tests/benchmarks/run.py [--quick] [--only NAME] [--json FILE] [--demo-model MODEL]

Prints one table and writes one JSON file. A target that is missed is reported, not an error. What
the file has of other benchmarks stays, if it was measured on the same tree and machine.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from machine import OtherProcesses
from measure import Setting
from results import Report, Row
from speed import (
    decode,
    draft,
    embeddings,
    end_to_end,
    export,
    feed,
    finalize,
    memory,
    score,
    training,
)

from ncclean.errors import ModelError
from ncclean.models.checkpoint import resolve

BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {
    "score": score.run,
    "decode": decode.run,
    "draft": draft.run,
    "feed": feed.run,
    "end-to-end": end_to_end.run,
    "memory": memory.run,
    "embeddings": embeddings.run,
    "finalize": finalize.run,
    "export": export.run,
    "training": training.run,
}


def main() -> None:
    arguments = _parse()
    logging.basicConfig(level=logging.ERROR)  # open_clip warns of the random weights, as meant
    report = Report(arguments.quick)
    try:
        with tempfile.TemporaryDirectory(prefix="ncclean-benchmarks-") as scratch:
            setting = Setting(arguments.quick, arguments.demo_model, Path(scratch))
            for name in arguments.only or BENCHMARKS:
                print(f"{name} ...", file=sys.stderr, flush=True)
                start, others = time.perf_counter(), OtherProcesses()
                report.rows[name] = BENCHMARKS[name](setting)
                report.other_processes[name] = others.cores
                report.seconds[name] = time.perf_counter() - start
    finally:  # a crash or Ctrl-C keeps what was measured before
        report.show()
        report.write(arguments.json)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes, under two minutes")
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), help="run this one; repeatable"
    )
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="result file")
    parser.add_argument(
        "--demo-model", default="demo", help="a small model as `ncclean score --model` takes it"
    )
    arguments = parser.parse_args()
    try:
        resolve(arguments.demo_model, None)
    except ModelError as error:
        parser.error(f"--demo-model: {error}")
    return arguments


if __name__ == "__main__":
    main()
