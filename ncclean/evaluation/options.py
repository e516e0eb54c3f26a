"""Options of the evaluations of models. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ncclean.base.options import DecodeThreads, Option, Options, usable_cores


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions(Options):
    """Options of embedding images and captions that change no result.

    Raises `InputError` for a value out of range.
    """

    batch_size: Annotated[
        int, Option("Images per batch; changes no result.", low=1, is_idle=True)
    ] = 256
    decode_threads: DecodeThreads = field(default_factory=usable_cores)


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(Options):
    """Options of a linear probe; all but `solver` and `seed` are of `adamw`.

    Raises `InputError` for a value out of range.
    """

    solver: Annotated[Literal["lbfgs", "adamw"], Option("`lbfgs` or `adamw`.")] = "lbfgs"
    epochs: Annotated[int, Option("Epochs of `adamw`.", low=1)] = 60
    learning_rate: Annotated[float, Option("Initial learning rate of `adamw`.", above=0)] = 3e-4
    batch_size: int = 1024
    weight_decay: float = 0.01
    seed: int = 0
