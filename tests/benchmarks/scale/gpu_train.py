"""A training step on a GPU: inputs through pinned memory, numbers read a step late, or neither.

    python tests/benchmarks scale.gpu_train [--models ViT-B-32 ViT-L-14] [--json FILE]

Random weights, and the same pixels in every step: nothing to load or decode. The ways take turns.
A step in which the host waits for the device is counted by torch itself. Without a GPU it says so.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
import warnings
from collections.abc import Iterator

import torch
from measure import take_turns
from records import Row, benchmark
from speed.training import SameBatch

from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer
from scale.gpu import check_gpu, random_estimator

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


def steps_of_ways(
    models: tuple[str, ...] = ("ViT-B-32", "ViT-L-14"), batch_size: int = 256, steps: int = 30,
    repeats: int = 3,
) -> Iterator[Row]:  # fmt: skip
    """A row for each model and way, of the fastest repeat."""
    check_gpu("cuda")
    for name in models:
        ways = {
            way: functools.partial(run_steps, name, batch_size, steps, pinned=pinned, late=late)
            for way, (pinned, late) in _WAYS.items()
        }
        for way, timing in take_turns(ways, repeats).items():
            fastest = min(timing.results, key=lambda result: result["seconds"])
            rate = batch_size / fastest["seconds"]
            device = torch.cuda.get_device_name()
            yield {
                "model": name, "device": device, "way": way, "pairs_per_second": rate, **fastest
            }  # fmt: skip


if __name__ == "__main__":
    benchmark(steps_of_ways)
