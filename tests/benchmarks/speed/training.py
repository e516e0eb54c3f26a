"""Step time of every objective relative to `clip`, ViT-B-32 at batch 64, and the solver's share.

    python tests/benchmarks speed.training [--model demo] [--rounds 2]

All objectives take turns in one run, on the same pixels and captions, with nothing to load or
decode. A phase of an objective is a row of its own. The transport solver is timed at N = 2048 and
compared with the step that NCU's second phase would need there: 32 times that of 64 pairs.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from machine import OtherProcesses
from measure import Setting
from results import Report, Row, Target
from towers import Towers, demo_towers, random_vit_b_32

from ncclean.data.weighted_loader import TrainBatch, WeightedLoader
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.objectives.registry import METHODS, make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import StepReport, Trainer
from ncclean.training.transport import masked_sinkhorn
from speed.transport import simulated_problem

BATCH = 64
# Design, section 6: relative to `clip` at the same batch.
TARGETS = {"osa": 1.02, "bayes": 1.05, "disncl disentangling": 1.2, "ncu UL": 1.4}
_SOLVER_PAIRS = 2048
_SOLVER_SHARE = 0.05


class SameBatch:
    """A loader that shows one batch again and again."""

    def __init__(self, size: tuple[int, int], steps: int, rows: int = BATCH) -> None:
        generator = torch.Generator().manual_seed(0)
        words = ("a photo of", "red", "small", "dog", "car", "in the park", "at night", "two")
        captions = [
            " ".join(words[(row * 7 + place) % len(words)] for place in range(4 + row % 8))
            for row in range(rows)
        ]
        self.batch = TrainBatch(
            pixels=torch.randint(0, 256, (rows, 3, *size), dtype=torch.uint8, generator=generator),
            captions=captions,
            uids=[f"{row:032x}" for row in range(rows)],
            weights=torch.rand(rows, generator=generator),
            is_forget=torch.arange(rows) < rows // 10,
        )
        self.steps_per_epoch = steps
        self.counts = SimpleNamespace(skipped=Counter())

    def epoch(self, epoch: int, first: int = 0) -> Iterator[TrainBatch]:
        for _ in range(first, self.steps_per_epoch):
            yield self.batch


def step_times(towers: Towers, method: str, steps: int, folder: Path) -> dict[str, float]:
    """Seconds of the fastest step but the first, by phase of the objective."""
    estimator = towers.estimator("auto")
    options = ObjectiveOptions(
        learning_rate=1e-6, epochs=1, prompt_epochs=1, ncu=NcuOptions(forget_percent=10)
    )
    objective = make_objective(method, options, estimator.tokenize)
    loader = SameBatch(towers.preprocessing.size, steps)
    trainer = Trainer(
        estimator,
        objective,
        cast(WeightedLoader, loader),
        TrainOptions(tensorboard=False, save_minutes=1e6, log_steps=1000),
        folder,
    )
    ends: dict[str, list[float]] = defaultdict(list)
    trainer.run(on_step=lambda report: _note(report, ends))
    return {
        phase: min(after - before for before, after in itertools.pairwise(times))
        for phase, times in ends.items()
    }


def _note(report: StepReport, ends: dict[str, list[float]]) -> None:
    ends[report.phase].append(time.perf_counter())


def run(setting: Setting) -> list[Row]:
    towers = demo_towers(setting.demo_model) if setting.quick else random_vit_b_32()
    return measure(towers, setting.scratch, rounds=setting.choose(full=2, quick=1), steps=3)


def measure(towers: Towers, scratch: Path, rounds: int, steps: int) -> list[Row]:
    best: dict[str, float] = {}
    order = list(METHODS)
    for turn in range(rounds):
        for method in order:
            found = step_times(towers, method, steps, scratch / f"{method}-{turn}")
            for phase, seconds in found.items():
                name = method if len(found) == 1 else f"{method} {phase}"
                best[name] = min(seconds, best.get(name, seconds))
        order.reverse()
    rows = [
        Row(
            name=f"step, {name}",
            value=seconds,
            unit="s",
            ratio=seconds / best["clip"],
            target=Target("ratio", "<=", TARGETS[name]) if name in TARGETS else None,
            note=f"batch {BATCH}, relative to clip",
        )
        for name, seconds in best.items()
    ]
    problem = simulated_problem(_SOLVER_PAIRS)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        masked_sinkhorn(*problem)
        seconds.append(time.perf_counter() - start)
    step = best["ncu UL"] * _SOLVER_PAIRS / BATCH
    share = Target("ratio", "<=", _SOLVER_SHARE)
    solver = Row(
        name=f"transport solver, N = {_SOLVER_PAIRS}",
        value=min(seconds),
        unit="s",
        ratio=min(seconds) / step,
        target=share,
        note=f"share of a step of {_SOLVER_PAIRS} pairs, {_SOLVER_PAIRS // BATCH} x {BATCH}",
    )
    return [*rows, solver]


def main() -> None:
    parser = argparse.ArgumentParser(description=cast(str, __doc__).split("\n")[0])
    parser.add_argument("--model", help="demo, or another model; default a random ViT-B-32")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    towers = random_vit_b_32() if arguments.model is None else demo_towers(arguments.model)
    report = Report(quick=False)
    others = OtherProcesses()
    with tempfile.TemporaryDirectory(prefix="ncclean-training-") as scratch:
        rows = measure(towers, Path(scratch), arguments.rounds, arguments.steps)
    report.rows["training"], report.other_processes["training"] = rows, others.cores
    report.show()
    if arguments.json:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
