"""One optimiser step: a rank's batch in, averaged gradients, one step out, and its numbers later.

On a GPU nothing here waits for the device. Inputs travel from pinned memory on a stream of their
own, while the step before computes. Whether a step is finite decides on the device if it is taken,
and its numbers are read when the device is busy with the next one.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ncclean.data.weighted_loader import TrainBatch
from ncclean.errors import TrainingError
from ncclean.models.estimator import Estimator
from ncclean.training.adversary import Adversaries
from ncclean.training.distributed import gather_with_gradients
from ncclean.training.grad_cache import backward_in_pieces
from ncclean.training.gradient_average import GradientAverage
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Objective, Phase, Terms
from ncclean.training.objectives.pair_memory import pair_keys
from ncclean.training.process_group import Ranks, average_over

_LARGEST_SCALE = 100.0
_ADVICE = "nothing was changed by this step: use a smaller learning rate, or fp32"


@dataclass(frozen=True)
class StepNumbers:
    """Means of the loss terms over ranks, the norm of the gradient, the logit scale after the step.

    `ended` is when the step was done, by `time.monotonic`.
    """

    terms: dict[str, float]
    gradient_norm: float
    scale: float
    ended: float


class BatchStep:
    """Steps a model on batches; `pieces` cuts a rank's batch for the forward passes."""

    def __init__(
        self,
        estimator: Estimator,
        objective: Objective,
        ranks: Ranks,
        *,
        pieces: int,
        clip_norm: float,
        seed: int,
    ) -> None:
        self._estimator, self._objective, self._ranks = estimator, objective, ranks
        self._model = estimator.model
        self._pieces, self._clip_norm, self._seed = pieces, clip_norm, seed
        self.adversaries: Adversaries | None = None  # of the phase
        is_gpu = estimator.device.type == "cuda"
        self._upload_stream = torch.cuda.Stream(estimator.device) if is_gpu else None
        # Gradients of half precision need it; with bf16 and fp32 it does nothing.
        self.scaler = torch.amp.GradScaler(
            estimator.device.type, enabled=estimator.precision == "fp16"
        )

    @property
    def scale(self) -> torch.Tensor:
        """The logit scale of the model, with gradients."""
        scale: torch.Tensor = self._model.logit_scale.float().exp()  # type: ignore[operator]
        return scale

    def backward(
        self,
        batch: TrainBatch,
        number: int,
        phase: Phase,
        optimizer: torch.optim.Optimizer,
        average: GradientAverage,
    ) -> Terms:
        """Compute the averaged gradients of a batch; returns the detached terms of this rank.

        `number` counts the steps of the run.
        """
        inputs, facts = self._uploaded(self._inputs(batch)), self._uploaded(_facts(batch))
        optimizer.zero_grad(set_to_none=True)

        def encode(piece: tuple[torch.Tensor, ...]) -> Embeddings:
            images, texts = piece
            if batch.features is not None:
                return self._objective.encode_features(images, texts, phase)
            pixels = self._estimator.normalized(images)
            with self._estimator.autocast():
                return self._objective.encode(self._model, pixels, texts, phase)

        def terms(local: Embeddings) -> Terms:
            whole = gather_with_gradients({**local, **facts})
            pairs = GlobalBatch(
                **{name: whole.pop(name) for name in facts}, seed=_step_seed(self._seed, number)
            )
            if self.adversaries is not None:
                self.adversaries.step(whole, pairs)
            return self._terms(whole, pairs, phase)

        # What the towers draw (dropout, patches) belongs to the step, so that a resumed run needs
        # no state of a generator. Ranks draw for pairs of their own.
        torch.manual_seed(_step_seed(self._seed, number, self._ranks.rank))
        pieces = list(zip(*(rows.chunk(self._pieces) for rows in inputs.values()), strict=True))
        with self._attention():
            # Averaged before anyone looks for an overflow: a rank that found none in its own share
            # would take the step that another one skips.
            return backward_in_pieces(pieces, encode, terms, self.scaler.scale, average.during())

    def update(
        self, terms: Terms, phase: Phase, optimizer: torch.optim.Optimizer, average: GradientAverage
    ) -> Callable[[], StepNumbers]:
        """Take the step, unless a term or the gradient is not finite; returns how to read it.

        The returned function waits for the step's numbers. It raises `TrainingError` if the step
        was not taken and a smaller loss scale would not mend that. To be called before the next
        update.
        """
        self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(average.parameters, self._clip_norm)
        # Of all ranks: if one does not take the step, none does.
        losses = average_over(self._ranks, torch.stack(list(terms.values())))
        checked = torch.cat([losses, norm.view(1)])
        # A fused optimiser changes nothing where this is 1; it is how a gradient scaler skips.
        optimizer.found_inf = 1 - checked.isfinite().all().float()  # type: ignore[attr-defined]
        optimizer.step()
        self.scaler.update()
        scale = getattr(self._model, "logit_scale", None)
        if scale is not None and scale.requires_grad:
            with torch.no_grad():
                scale.clamp_(0, math.log(_LARGEST_SCALE))
        on_gpu = self._upload_stream is not None
        numbers = torch.cat([checked, self.scale.detach().view(1)]).to("cpu", non_blocking=on_gpu)
        device, ended = self._estimator.device, time.monotonic()
        done = torch.cuda.current_stream(device).record_event() if on_gpu else None

        def read() -> StepNumbers:
            if done is not None:
                done.synchronize()
            *means, gradient_norm, logit_scale = numbers.tolist()
            values = dict(zip(terms, means, strict=True))
            self._check(values, gradient_norm, phase)
            end = ended if done is None else time.monotonic()
            return StepNumbers(values, gradient_norm, logit_scale, end)

        return read

    def _check(self, terms: dict[str, float], gradient_norm: float, phase: Phase) -> None:
        """Raise `TrainingError` for a term or a gradient that is not finite.

        Such a gradient only skips its step as long as a smaller loss scale may mend it.
        """
        for name, value in terms.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"the term {name!r} of {self._objective.name} is {value} in phase "
                    f"{phase.name}; {_ADVICE}"
                )
        if math.isfinite(gradient_norm):
            return
        # The step has lowered the loss scale: it was below 1 before.
        if not self.scaler.is_enabled() or (
            self.scaler.get_scale() < self.scaler.get_backoff_factor()
        ):
            raise TrainingError(f"the gradient is not finite in phase {phase.name}; {_ADVICE}")

    def _terms(self, whole: Embeddings, facts: GlobalBatch, phase: Phase) -> Terms:
        """The terms of the whole batch, or this rank's share of them where that is enough."""
        if self._ranks.size > 1:
            pairs = len(facts.weights) // self._ranks.size
            own = slice(self._ranks.rank * pairs, (self._ranks.rank + 1) * pairs)
            terms = self._objective.local_terms(whole, own, self.scale, facts, phase)
            if terms is not None:
                return terms
        return self._objective.terms(whole, self.scale, facts, phase)

    def _attention(self) -> AbstractContextManager[None]:
        """Choose the attention kernel: on a CPU, the fused one has a slow backward."""
        if self._estimator.device.type != "cpu":
            return nullcontext()
        chosen: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
        return chosen

    def _inputs(self, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """What the towers read of a batch, or the objective in their place."""
        if batch.features is not None:
            return dict(zip(("images", "texts"), batch.features, strict=True))
        tokens = batch.tokens
        if tokens is None:
            tokens = self._estimator.batch_tokens(batch.captions)
        return {"images": batch.pixels, "texts": tokens}

    def _uploaded(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors on the device; on a GPU the copy overlaps what is computed there."""
        device, stream = self._estimator.device, self._upload_stream
        if stream is None:
            return {name: tensor.to(device) for name, tensor in tensors.items()}
        with torch.cuda.stream(stream):
            # torch keeps pinned blocks and hands one out again once its upload is through.
            there = {
                name: tensor.pin_memory().to(device, non_blocking=True)
                for name, tensor in tensors.items()
            }
        compute = torch.cuda.current_stream(device)
        compute.wait_stream(stream)
        for tensor in there.values():
            tensor.record_stream(compute)
        return there


def _facts(batch: TrainBatch) -> dict[str, torch.Tensor]:
    """The facts about this rank's pairs, by the names of `GlobalBatch`."""
    truth = batch.is_noisy
    return {
        "weights": batch.weights,
        "is_forget": batch.is_forget,
        "keys": pair_keys(batch.pair_names or batch.uids),
        "is_noisy": torch.full_like(batch.is_forget, -1, dtype=torch.int8)
        if truth is None
        else truth,
    }


def _step_seed(*numbers: int) -> int:
    """A seed of 63 bits for a run's seed and step; neighbouring steps have unrelated ones."""
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
