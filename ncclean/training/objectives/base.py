"""The interface of an objective: phases, encodings and named loss terms."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from ncclean.models.text_tower import encode_text
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.similarity import normalized

Embeddings = dict[str, torch.Tensor]
Terms = dict[str, torch.Tensor]
Tokenizer = Callable[[list[str]], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of training: `epochs` passes over the data, cut off after `steps` if given.

    `learning_rates` holds the highest rate of each parameter group that trains: `image`, `text`,
    `scale` (the logit scale and bias) and the modules that the objective brings. All others are
    frozen, as are the embeddings and the first `frozen_text_blocks` blocks of the text tower, if
    there are any. The rate rises over `warmup` of the phase's steps, or over `warmup_steps`, then
    falls along a cosine; with `schedule="run"` both are counted over all phases.
    """

    name: str
    epochs: int
    learning_rates: Mapping[str, float]
    warmup: float = 0.1
    warmup_steps: int | None = None
    schedule: Literal["phase", "run"] = "phase"
    frozen_text_blocks: int = 0
    steps: int | None = None

    def rate(self, step: int, before: int, steps: int, total: int) -> float:
        """Return the learning rate at a step as a share of the highest: warm-up, then a cosine.

        `before` are the steps of earlier phases, `steps` those of this one, `total` those of all.
        """
        if self.schedule == "run":
            before, steps = 0, total
        step -= before
        warm = self.warmup_steps or max(1, round(self.warmup * steps))
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    def length(self, steps_per_epoch: int) -> int:
        """Return the number of steps of the phase."""
        whole = self.epochs * steps_per_epoch
        return whole if self.steps is None else min(whole, self.steps)


def shared_out(phases: Sequence[Phase], steps: int, steps_per_epoch: int) -> tuple[Phase, ...]:
    """Cut training phases to `steps` steps in all, in proportion to their epochs.

    The data are repeated as often as needed, the last time in part.
    """
    passes = list(itertools.accumulate(phase.epochs for phase in phases))
    ends = [round(steps * done / passes[-1]) for done in passes]
    counts = [end - start for start, end in itertools.pairwise([0, *ends])]
    return tuple(
        dataclasses.replace(phase, steps=count, epochs=-(-count // max(steps_per_epoch, 1)))
        for phase, count in zip(phases, counts, strict=True)
    )


@dataclass(frozen=True)
class GlobalBatch:
    """The facts about the N pairs of a step over all ranks, besides their embeddings.

    `keys` (N,) are int64 hashes of the uids, by which an objective remembers a pair; `is_noisy`
    (N,) is the truth as int8: 1, 0, or -1 if unknown, only for the log. `seed` belongs to the step,
    and is the same on all ranks and after resuming: draws that use it need no state.
    """

    weights: torch.Tensor
    is_forget: torch.Tensor
    keys: torch.Tensor | None = None
    is_noisy: torch.Tensor | None = None
    seed: int = 0


class Objective(ABC):
    """A training objective: the loss, and the modules that it adds to the model.

    A new one is a file with such a class; see docs/objectives.md. Subclasses provide `name` and
    `terms`. The other methods suit an objective on image and caption embeddings without modules or
    adversaries of its own.
    """

    name: str
    adversary_steps: int = 1  # before each step of the model
    largest_scale: float = 100.0  # that a model may learn

    def __init__(self, phases: tuple[Phase, ...]) -> None:
        """`phases` are the stretches of training, in order."""
        self.phases = phases

    @abstractmethod
    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Return named float32 scalars that sum to the loss, from the embeddings of all ranks."""

    def local_terms(
        self,
        embeddings: Embeddings,
        rows: slice,
        scale: torch.Tensor,
        batch: GlobalBatch,
        phase: Phase,
    ) -> Terms | None:
        """Return loss terms of the pairs `rows`, whose mean over ranks is the result of `terms`.

        For a loss that is a mean over pairs, each against the whole batch: with several ranks each
        then holds only its own pairs' rows of the similarities, (B, W B) instead of (W B, W B).
        None for other losses.
        """
        return None

    def encode(
        self, model: nn.Module, pixels: torch.Tensor, tokens: torch.Tensor, phase: Phase
    ) -> Embeddings:
        """Embed a rank's images and tokens: (B, ...) to L2-normalised (B, d) `image` and `text`."""
        image = model.encode_image(pixels)  # type: ignore[operator]
        text = encode_text(model, tokens, normalize=False)
        return {"image": normalized(image), "text": normalized(text)}

    def encode_features(self, image: torch.Tensor, text: torch.Tensor, phase: Phase) -> Embeddings:
        """Return the embeddings of `encode` from (B, d) unnormalised features of frozen towers.

        Only used if nothing but the objective's own modules trains.
        """
        raise TypeError(f"{self.name} does not train on features")

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return modules that the objective adds to the model, trained and saved beside it."""
        return {}

    def adversaries(self, phase: Phase) -> Mapping[str, float]:
        """Return learning rates, by name, of the modules that train as adversaries in this phase.

        These have a separate optimiser and loss: in each step they train first, on detached
        embeddings, and are then frozen.
        """
        return {}

    def adversary_terms(self, embeddings: Embeddings, batch: GlobalBatch, phase: Phase) -> Terms:
        """Return named terms that sum to the loss of the adversaries."""
        return {}

    def statistics(self) -> dict[str, float]:
        """Return named numbers about the last step, besides its loss terms, for the log."""
        return {}

    def save(self, folder: Path) -> None:  # noqa: B027  most have none
        """Write the objective's modules that belong to the trained model into its folder."""


class LossObjective(Objective):
    """An objective that is a stateless function of embeddings and batch.

    `loss` takes (N, d) image and (N, d) caption embeddings of all ranks, L2-normalised, the scale
    and the batch, and returns named scalars that sum to the loss. If these are means over pairs,
    each against the whole batch (`is_per_pair`), it also takes the `rows` to average over.
    """

    def __init__(
        self,
        name: str,
        phases: tuple[Phase, ...],
        loss: Callable[..., Terms],
        *,
        is_per_pair: bool = False,
    ) -> None:
        super().__init__(phases)
        self.name, self._loss, self._is_per_pair = name, loss, is_per_pair

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Return the named loss terms that the objective's function computes."""
        return self._loss(embeddings["image"], embeddings["text"], scale, batch)

    def local_terms(
        self,
        embeddings: Embeddings,
        rows: slice,
        scale: torch.Tensor,
        batch: GlobalBatch,
        phase: Phase,
    ) -> Terms | None:
        """Return the loss terms of the pairs `rows`, for a loss that is a mean over pairs."""
        if not self._is_per_pair:
            return None
        return self._loss(embeddings["image"], embeddings["text"], scale, batch, rows)


def whole_model(
    learning_rate: float, epochs: int, warmup: float = 0.1, *, train_scale: bool = True
) -> tuple[Phase, ...]:
    """Return one training phase in which everything trains at one rate, and the scale if asked."""
    groups = ("image", "text", "scale") if train_scale else ("image", "text")
    rates = dict.fromkeys(groups, learning_rate)
    return (Phase(name="train", epochs=epochs, learning_rates=rates, warmup=warmup),)


def method_phases(options: ObjectiveOptions, *, train_scale: bool = True) -> tuple[Phase, ...]:
    """Return `whole_model` by the options of a method, by default at 1e-5 for five epochs."""
    return whole_model(
        options.learning_rate or 1e-5, options.epochs or 5, options.warmup, train_scale=train_scale
    )


def total(terms: Terms) -> torch.Tensor:
    """Return the sum of the named terms of a loss."""
    return torch.stack(list(terms.values())).sum()


def pair_keys(uids: Sequence[str]) -> torch.Tensor:
    """Return (N,) int64 hashes of uids, which ranks can exchange."""
    digests = (hashlib.blake2b(uid.encode(), digest_size=8).digest() for uid in uids)
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests])
