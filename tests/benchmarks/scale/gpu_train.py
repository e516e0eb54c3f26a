"""A training step on a GPU: inputs through pinned memory, numbers read a step late, or neither.

    python tests/benchmarks scale.gpu_train [--models ViT-B-32 ViT-L-14] [--json FILE]

Random weights, and the same pixels in every step: nothing to load or decode. The ways take turns.
A step in which the host waits for the device is counted by torch itself. Without a GPU it says so.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from measure import take_turns
from records import make_record, write_record
from speed.training import SameBatch

from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer
from scale.gpu import random_estimator

# Inputs through pinned memory; numbers read a step late.
_WAYS = {"as it is": (True, True), "unpinned": (False, True), "at once": (True, False),
         "neither": (False, False)}  # fmt: skip
_WARM = 3


def run_steps(name: str, batch: int, steps: int, *, pinned: bool, late: bool) -> dict[str, float]:
    """The median seconds of a step, how often the host waits in one, and the peak of memory."""
    estimator = random_estimator(name, "auto", "cuda", compiled=False)
    objective = make_objective(
        "clip", ObjectiveOptions(learning_rate=1e-6, epochs=1), estimator.tokenize
    )
    # Without a folder nothing is written, but a step that is due is read before the next one.
    options = TrainOptions(tensorboard=False, save_steps=None if late else 1)
    loader = SameBatch(estimator.image_size, _WARM + steps, batch)
    trainer = Trainer(estimator, objective, loader, options, None)
    if not pinned:
        trainer._step._upload_stream = None
    ends = []
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        trainer.run(on_step=lambda report: ends.append(time.perf_counter()))
    torch.cuda.set_sync_debug_mode("default")
    between = [after - before for before, after in itertools.pairwise(ends[_WARM:])]
    return {
        "seconds": statistics.median(between),
        "waits_per_step": len(waits) / (_WARM + steps),
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["ViT-B-32", "ViT-L-14"])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: nothing was measured")
    results = []
    for name in args.models:

        def way(pinned: bool, late: bool, name: str = name) -> Callable[[], dict[str, float]]:
            return lambda: run_steps(name, args.batch_size, args.steps, pinned=pinned, late=late)

        timings = take_turns({label: way(*given) for label, given in _WAYS.items()}, args.repeats)
        for label, timing in timings.items():
            fastest = min(timing.results, key=lambda result: result["seconds"])
            results.append(
                {
                    "model": name,
                    "device": torch.cuda.get_device_name(),
                    "way": label,
                    "pairs_per_second": args.batch_size / fastest["seconds"],
                    **fastest,
                }
            )
            print(results[-1])
    if args.json:
        settings = {"batch_size": args.batch_size, "steps": args.steps, "repeats": args.repeats}
        write_record(args.json, make_record(results, settings=settings))


if __name__ == "__main__":
    main()
