"""Step time of every objective relative to `clip`, ViT-B-32 at batch 64.

All objectives take turns in one run, on the same pixels and captions, with nothing to load or
decode. A phase of an objective is a row of its own.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from measure import Row, Setting, Target
from towers import Towers, demo_towers, random_vit_b_32

from ncclean.data.weighted_loader import TrainBatch, WeightedLoader
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.objectives.registry import METHODS, make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer

BATCH = 64
# Design, section 6: relative to `clip` at the same batch.
TARGETS = {"osa": 1.02, "bayes": 1.05, "disncl disentangling": 1.2, "ncu UL": 1.4}
_STEPS = 3


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
    trainer.run(on_step=lambda report: ends[report.phase].append(time.perf_counter()))
    return {
        phase: min(after - before for before, after in itertools.pairwise(times))
        for phase, times in ends.items()
    }


def run(setting: Setting) -> list[Row]:
    towers = demo_towers(setting.demo_model) if setting.quick else random_vit_b_32()
    best: dict[str, float] = {}
    order = list(METHODS)
    for turn in range(setting.choose(full=2, quick=1)):
        for method in order:
            found = step_times(towers, method, _STEPS, setting.scratch / f"{method}-{turn}")
            for phase, seconds in found.items():
                name = method if len(found) == 1 else f"{method} {phase}"
                best[name] = min(seconds, best.get(name, seconds))
        order.reverse()
    return [
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
