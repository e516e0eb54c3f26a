"""The options of the trainer, stated once like `objectives.options`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ncclean.base.options import Option, Options, Seed, usable_cores


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """Options of training for any objective. Raises `InputError` for a value out of range.

    `steps` replaces the objective's epochs; two phases share them in proportion to their epochs.
    `parts` cuts a rank's batch for the forward passes, see `batch_step`. A checkpoint is written
    every `save_steps` steps, every `save_minutes` minutes and at the end; the newest `keep` are
    kept.
    """

    steps: Annotated[
        int | None, Option("Optimiser steps instead of --epochs; phases share them.", low=1)
    ] = None
    parts: Annotated[
        int,
        Option("Encode the batch in this many parts; same gradient, but for batch norms.", low=1),
    ] = 1
    weight_decay: Annotated[float, Option("Weight decay, for weight matrices only.", low=0)] = 0.2
    ema_decay: Annotated[
        float | None,
        Option(
            "Decay of a moving average of the weights, such as 0.999.", name="ema", above=0, below=1
        ),
    ] = None
    gradient_checkpointing: Annotated[bool, Option("Save memory; costs another forward pass.")] = (
        False
    )
    compiled: Annotated[
        bool, Option("Use torch.compile; pays off only on GPUs.", name="compile")
    ] = False
    save_steps: Annotated[int | None, Option("Steps between checkpoints.", low=1, is_idle=True)] = (
        None
    )
    save_minutes: Annotated[float, Option("Minutes between checkpoints.", is_idle=True)] = 10.0
    clip_norm: Annotated[float, Option("Norm that gradients are clipped to.", is_listed=False)] = (
        1.0
    )
    betas: Annotated[tuple[float, float], Option("AdamW betas.", is_listed=False)] = (0.9, 0.98)
    eps: Annotated[float, Option("AdamW epsilon.", is_listed=False)] = 1e-8
    log_steps: Annotated[
        int, Option("Steps between lines of results.jsonl.", low=1, is_idle=True, is_listed=False)
    ] = 10
    keep: Annotated[int, Option("Checkpoints to keep.", low=1, is_idle=True, is_listed=False)] = 2
    tensorboard: Annotated[
        bool, Option("Write TensorBoard files.", is_idle=True, is_listed=False)
    ] = True
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class AdaptOptions(Options):
    """Options of adapting a model: a short training of both towers on the cleanest pairs.

    `warmup` is the share of the steps over which the learning rate rises; then it falls along a
    cosine. A batch has at least two pairs: a pair needs another one as negative. Raises
    `InputError` for a number out of range.
    """

    steps: Annotated[int, Option("Optimiser steps.", low=1)] = 50
    batch_size: Annotated[int, Option("Pairs of a step.", low=2)] = 256
    learning_rate: Annotated[float, Option("Peak learning rate.", above=0)] = 1e-5
    warmup: Annotated[
        float,
        Option(
            "Share of the steps over which the learning rate rises.", low=0, high=1, is_listed=False
        ),
    ] = 0.1
    decode_threads: Annotated[
        int,
        Option(
            "Decoders: processes, and threads in these (default: one per core).",
            low=1,
            is_idle=True,
            is_listed=False,
            shows_default=False,
        ),
    ] = field(default_factory=usable_cores)
    seed: Seed = 0
