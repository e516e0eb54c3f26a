"""Whole commands over photographs, start included, beside the model alone on the same crops.

    python tests/benchmarks speed.whole --out FOLDER [--clip-retrieval PROGRAMS] [--json FILE]

ViT-B-32 with random weights. Model alone is the estimator, loaded and in the precision of `score`,
on decoded crops in memory, captions included. The plain loop and clip-retrieval compute in float32.
PROGRAMS is the `bin` folder of an environment with the packages that `compare.peers` names.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from command import BENCHMARK, NCCLEAN
from compare import process
from compare.models import write_models
from compare.peers import clip_retrieval
from measure import Setting, take_turns
from records import make_record, write_record
from towers import random_vit_b_32

from ncclean.models.estimator import Estimator
from speed.corpora import photograph_shards
from speed.end_to_end import DecodedShard, decode, model_only
from speed.plain_loop import plain_loop

_SHARD = 1000
_BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clip-retrieval", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plain-loop", type=Path, help=argparse.SUPPRESS)  # of this script itself
    args = parser.parse_args()
    if args.plain_loop is not None:
        plain_loop(random_vit_b_32(), sorted(args.plain_loop.glob("*.tar")), _BATCH)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    setting = Setting(quick=False, demo_model="demo", scratch=args.out)
    shards = photograph_shards(setting, args.pairs // _SHARD, _SHARD)
    folder = shards[0].parent
    files = write_models(args.out / "models")["ViT-B-32"]
    commands: dict[str, list[str | Path]] = {
        "score": [*NCCLEAN, "score", folder, "--out", args.out / "s.parquet", "--overwrite",
                  "--quiet", *files.ncclean],
        "plain loop": [*BENCHMARK, "speed.whole", "--out", args.out, "--plain-loop", folder],
    }  # fmt: skip
    if args.clip_retrieval is not None:
        scorer = clip_retrieval(args.clip_retrieval, args.out / "models")
        commands["clip-retrieval"] = scorer.command(folder, files, args.out / "clip-retrieval")
    estimator = random_vit_b_32().estimator("auto")
    decoded = decode(estimator, shards)
    ways: dict[str, Callable[[], float]] = {
        name: functools.partial(_run, command, args.out / f"{name}.txt")
        for name, command in commands.items()
    }
    ways["model alone"] = functools.partial(_alone, estimator, decoded)
    timings = take_turns(ways, args.repeats)
    rows = [
        {"way": name, "seconds": timing.best, "processor_seconds": min(timing.results)}
        for name, timing in timings.items()
    ]
    for row in rows:
        print(f"{row['way']}: {row['seconds']:.1f} s, {row['processor_seconds']:.1f} s of a core")
    if args.json:
        settings = {"pairs": args.pairs, "precision": estimator.precision}
        write_record(args.json, make_record(rows, settings=settings))


def _alone(estimator: Estimator, decoded: Sequence[DecodedShard]) -> float:
    begin = time.process_time()
    model_only(estimator, decoded)
    return time.process_time() - begin


def _run(command: list[str | Path], log: Path) -> float:
    """The seconds of a processor that it took, with all its processes."""
    finished = process.run(command, log, environment={"HF_HUB_OFFLINE": "1", "NCCLEAN_CACHE": ""})
    if finished.exit:
        sys.exit(f"{log} tells why {command[0]} ended with {finished.exit}")
    return finished.processor_seconds


if __name__ == "__main__":
    main()
