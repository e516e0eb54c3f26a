"""Fixed training batches, and a run over them in one process or several."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer

from ncclean.data.decode import Preprocessing
from ncclean.data.rank_samples import Unusable
from ncclean.data.weighted_loader import TrainBatch
from ncclean.models.estimator import Estimator
from ncclean.training.objectives.base import Objective
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.process_group import Ranks, joined_ranks
from ncclean.training.trainer import Trainer

# Steps in proportion to the gradient: Adam's own, of equal size whatever the gradient, turn
# differences in its last digit into differences in its sign.
LINEAR = {"epochs": 1, "learning_rate": 0.1, "eps": 1.0}
TOKENIZER = functools.cache(SimpleTokenizer)  # which unpacks its vocabulary anew each time
WORDS = ("red", "blue", "green", "black", "star", "ring", "heart", "arrow")


TINY: dict[str, Any] = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
    "text_cfg": {
        "context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1,
    },
}  # fmt: skip


def tiny_estimator(precision: str = "fp32", **vision: Any) -> Estimator:
    """A CLIP of one layer with seeded random weights, for what does not depend on the model."""
    torch.manual_seed(0)
    settings = {**TINY, "vision_cfg": {**TINY["vision_cfg"], **vision}}
    size = settings["vision_cfg"]["image_size"]
    model = CLIP(**settings)
    with torch.no_grad():
        # Random towers embed all inputs alike: give the inputs more weight in what they see.
        for name, parameter in model.named_parameters():
            if "resblocks" in name and parameter.ndim == 2:
                parameter.mul_(6.0)
        model.token_embedding.weight.mul_(10.0)
    return Estimator(
        model,
        TOKENIZER(context_length=16),
        Preprocessing((size, size), (0.5,) * 3, (0.5,) * 3),
        precision=precision,
    )


CUT_SHORT = Unusable("shard_error", "00007", "it ends early")


class FixedBatches:
    """A loader of `steps` random batches; a rank sees its share of the rows of each.

    Some rows stand for samples that could not be shown.
    """

    def __init__(
        self, steps: int = 4, rows: int = 12, ranks: Ranks | None = None, size: int = 64
    ) -> None:
        self.steps_per_epoch = steps
        self._size = size
        self._rows, self._ranks = rows, ranks or Ranks()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        for step in range(first_step, self.steps_per_epoch):
            yield self._batch(epoch * self.steps_per_epoch + step)

    def _batch(self, seed: int) -> TrainBatch:
        generator = torch.Generator().manual_seed(seed)
        # Noise as coarse as a patch: finer noise is averaged away, and all images look alike.
        coarse = torch.randint(0, 256, (self._rows, 3, 2, 2), generator=generator).byte()
        half = self._size // 2
        pixels = coarse.repeat_interleave(half, dim=2).repeat_interleave(half, dim=3)
        picks = torch.randint(len(WORDS), (self._rows, 4), generator=generator)
        mine = torch.arange(self._rows).chunk(self._ranks.size)[self._ranks.rank]
        unusable = {1: Unusable("image_corrupt"), self._rows - seed % 4: CUT_SHORT}
        return TrainBatch(
            pixels=pixels[mine],
            captions=[" ".join(WORDS[i] for i in picks[row]) for row in mine],
            uids=[f"{seed % self.steps_per_epoch}-{row}" for row in mine],
            weights=torch.rand(self._rows, generator=generator)[mine],
            is_forget=(torch.arange(self._rows) % 4 == 0)[mine],
            is_noisy=(torch.arange(self._rows) % 3 == 0).to(torch.int8)[mine],
            unusable={
                place: unusable[row] for place, row in enumerate(mine.tolist()) if row in unusable
            },
        )


def train(
    folder: Path | None,
    *,
    method: str = "clip",
    objective: Objective | None = None,
    epochs: int = 2,
    learning_rate: float = 1e-3,
    ranks: Ranks | None = None,
    estimator: Estimator | None = None,
    resume: bool = False,
    stop_after: int | None = None,
    settings: dict[str, object] | None = None,
    **options: object,
) -> dict[str, torch.Tensor]:
    """The weights after training; `stop_after` breaks the run off, as a crash would."""
    estimator = estimator or tiny_estimator()
    given = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "prompt_epochs": 1,
        **(settings or {}),
    }
    chosen = objective or make_objective(method, ObjectiveOptions(**given), estimator.tokenize)
    trainer = Trainer(
        estimator,
        chosen,
        FixedBatches(ranks=ranks, size=estimator.image_size[0]),
        TrainOptions(tensorboard=False, log_steps=1, **options),
        folder,
        ranks,
    )

    def on_step(report: object) -> None:
        if stop_after is not None and report.step == stop_after:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        trainer.run(resume, on_step)
    return {name: value.clone() for name, value in estimator.model.state_dict().items()}


def start_ranks(function: Callable[..., None], arguments: tuple[object, ...], ranks: int) -> None:
    """Call `function(rank, *arguments)` in as many processes.

    They are forked from a server that has loaded torch and the trainer once: each loading them
    anew would cost more than what they are started for.
    """
    multiprocessing.set_forkserver_preload(["ncclean.training.trainer", "open_clip"])
    torch.multiprocessing.start_processes(function, arguments, ranks, start_method="forkserver")


def start_joined_ranks(function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """Call `function(ranks, *arguments)` in two gloo processes, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_ranks(_join_and_call, (2, port, function, arguments), 2)


def _join_and_call(
    rank: int, size: int, port: int, function: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    with joined_ranks(torch.device("cpu")) as ranks:
        function(ranks, *arguments)


def train_as_rank(ranks: Ranks, folder: str, methods: Sequence[str]) -> None:
    """The first rank saves the weights that each method ends with, `<method>.pt`."""
    for method in methods:
        weights = train(Path(folder) / method, method=method, ranks=ranks, **LINEAR)
        if ranks.is_first:
            torch.save(weights, Path(folder) / f"{method}.pt")
