"""Training by two processes of one thread each against one, weights in bf16, checkpoints.

ViT-B-32 with random weights, `clip`, 64 pairs to a process, nothing to load or decode. The ways to
train take turns: one process, and two that average gradients after the backward pass. They share a
machine, so what is exchanged goes through its memory. With weights in bf16, forward and backward
pass are timed without the float32 copies that AdamW needs: what they could gain at most. A
checkpoint's time is that by which a step is held up.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import socket
import statistics
import subprocess
import time
from typing import cast

import torch
from command import BENCHMARK
from measure import Setting, take_turns
from results import Row, Target
from torch import nn
from towers import Towers, demo_towers, random_vit_b_32

from ncclean.data.weighted_loader import WeightedLoader
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.process_group import joined_ranks
from ncclean.training.run_files import Position, save_checkpoint
from ncclean.training.trainer import Trainer
from speed.training import BATCH, SameBatch

_PROCESSES = {"one process": 1, "two": 2}
_WARM = 2  # steps; the first allocates


def run(setting: Setting) -> list[Row]:
    steps = setting.choose(full=4, quick=2)
    model = setting.demo_model if setting.quick else ""
    times: dict[str, list[float]] = {way: [] for way in _PROCESSES}
    for _ in range(setting.choose(full=3, quick=1)):
        for way in times:
            times[way].append(_seconds_of_step(way, model, steps))
    best = {way: min(seconds) for way, seconds in times.items()}
    one = best["one process"]
    rows = [
        Row(name="one process of one thread", value=BATCH / one, unit="pairs/s"),
        Row(
            name="two, averaged at the end of the pass",
            value=2 * BATCH / best["two"],
            unit="pairs/s",
            ratio=2 * one / best["two"],
            target=Target("ratio", ">=", 1.7),
        ),
    ]
    autocast, half = _passes(_towers(model), repeats=setting.choose(full=4, quick=1))
    rows.append(
        Row(name="passes with weights in bf16", value=half, unit="s", ratio=half / autocast)
    )
    stopped, written = _checkpoint_seconds(setting, _towers(model))
    rows.append(
        Row(
            name="a step waits for its checkpoint", value=stopped, unit="s", ratio=stopped / written
        )
    )
    return rows


def _towers(model: str) -> Towers:
    return demo_towers(model) if model else random_vit_b_32()


def _seconds_of_step(way: str, model: str, steps: int) -> float:
    """The mean over processes of each one's median, for processes that run side by side."""
    processes = _PROCESSES[way]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [*BENCHMARK, "speed.training_ways", "--model", model, "--steps", str(steps)],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": str(processes), "OMP_NUM_THREADS": "1"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a process of {way!r} failed")
    return statistics.mean(json.loads(output.splitlines()[-1]) for output in outputs)


def _train(towers: Towers, steps: int) -> float:
    """The median of the seconds of a step of this process."""
    torch.set_num_threads(1)
    estimator = towers.estimator("auto")
    objective = make_objective("clip", ObjectiveOptions(learning_rate=1e-6, epochs=1))
    batches = cast(WeightedLoader, SameBatch(towers.preprocessing.size, _WARM + steps))
    options = TrainOptions(tensorboard=False, save_minutes=1e6)
    ends = []
    with joined_ranks(torch.device("cpu")) as ranks:
        trainer = Trainer(estimator, objective, batches, options, None, ranks)
        trainer.run(on_step=lambda report: ends.append(time.perf_counter()))
    return statistics.median(
        after - before for before, after in zip(ends[_WARM - 1 :], ends[_WARM:], strict=False)
    )


def _passes(towers: Towers, repeats: int) -> tuple[float, float]:
    """Seconds of a forward and backward pass with float32 weights and autocast, and with bf16."""
    pixels = torch.randn(BATCH, 3, *towers.preprocessing.size)
    tokens = towers.tokenizer(["a photo of a red car in the park"] * BATCH)
    half = copy.deepcopy(towers.model).bfloat16()

    def one_pass(model: nn.Module, images: torch.Tensor, *, cast_weights: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=cast_weights):
            image, text = model.encode_image(images), model.encode_text(tokens)  # type: ignore
        (image.float() @ text.float().T).diagonal().sum().backward()
        model.zero_grad()

    timings = take_turns(
        {
            "autocast": lambda: one_pass(towers.model, pixels, cast_weights=True),
            "half": lambda: one_pass(half, pixels.bfloat16(), cast_weights=False),
        },
        repeats + 1,
    )
    return timings["autocast"].best, timings["half"].best


def _checkpoint_seconds(setting: Setting, towers: Towers) -> tuple[float, float]:
    """Seconds by which a checkpoint holds up a step, and of writing it at once."""
    steps = 3 * setting.choose(full=3, quick=1)
    estimator = towers.estimator("auto")
    objective = make_objective("clip", ObjectiveOptions(learning_rate=1e-6, epochs=1))
    batches = cast(WeightedLoader, SameBatch(towers.preprocessing.size, steps))
    options = TrainOptions(tensorboard=False, save_minutes=1e6, save_steps=3, keep=1)
    folder = setting.scratch / "checkpoints-of-steps"
    trainer = Trainer(estimator, objective, batches, options, folder)
    save = trainer._save
    stopped = []

    def timed(*arguments: object) -> None:
        begin = time.perf_counter()
        save(*arguments)  # type: ignore[arg-type]
        stopped.append(time.perf_counter() - begin)

    trainer._save = timed  # type: ignore[method-assign]
    trainer.run()
    written = sorted((folder / "checkpoints").glob("*.pt"))[-1]
    state = torch.load(written, weights_only=True)
    begin = time.perf_counter()
    save_checkpoint(setting.scratch / "again", Position(), state, keep=1)
    return statistics.median(stopped), time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=cast(str, __doc__).split("\n")[0])
    parser.add_argument("--model", default="")
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    print(json.dumps(_train(_towers(arguments.model), arguments.steps)))


if __name__ == "__main__":
    main()
