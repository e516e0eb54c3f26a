"""Take one optimiser step: a rank's batch in, averaged gradients, and the numbers later.

On a GPU nothing here waits for the device. Inputs travel from pinned memory on a separate stream
while the previous step computes. The device decides whether a step is finite, and so taken; its
numbers are read while the device computes the next one.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ncclean.data.rank_samples import REASONS
from ncclean.data.weighted_loader import TrainBatch
from ncclean.errors import TrainingError
from ncclean.models.estimator import Estimator
from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    Objective,
    Phase,
    Terms,
    pair_keys,
    total,
)
from ncclean.training.optimizers import Adversaries
from ncclean.training.process_group import (
    Ranks,
    average_gradients,
    average_over,
    gather_with_gradients,
)

Piece = TypeVar("Piece")

_ADVICE = "nothing was changed by this step: use a smaller learning rate, or fp32"


@dataclass(frozen=True)
class StepNumbers:
    """The numbers of a training step: loss terms, gradient norm, and logit scale after it.

    The terms are means over ranks. `ended` is when the step finished, by `time.monotonic`.
    `skipped` counts, by reason, the samples of all ranks that could not be used since the start of
    the run.
    """

    terms: dict[str, float]
    gradient_norm: float
    scale: float
    ended: float
    skipped: dict[str, int]


class BatchStep:
    """Trains a model, a batch at a time; `pieces` cuts a rank's batch for the forward passes."""

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
        self.skipped: Counter[str] = Counter()  # samples of this rank that could not be shown
        is_gpu = estimator.device.type == "cuda"
        self._upload_stream = torch.cuda.Stream(estimator.device) if is_gpu else None
        # Half-precision gradients need it; with bf16 and fp32 it does nothing.
        self.scaler = torch.amp.GradScaler(
            estimator.device.type, enabled=estimator.precision == "fp16"
        )

    @property
    def scale(self) -> torch.Tensor:
        """The logit scale of the model, with gradients."""
        scale: torch.Tensor = self._model.logit_scale.float().exp()  # type: ignore[operator]
        return scale

    def backward(
        self, batch: TrainBatch, number: int, phase: Phase, parameters: Sequence[nn.Parameter]
    ) -> Terms:
        """Compute the gradients of a batch, averaged over ranks; return detached loss terms.

        The terms are those of this rank. `number` counts the steps of the run; `parameters` are
        those that train, in the same order on every rank.
        """
        inputs, facts = self._uploaded(self._inputs(batch)), self._uploaded(_facts(batch))
        self.skipped.update(unusable.reason for unusable in batch.unusable.values())
        for parameter in parameters:
            parameter.grad = None

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

        # Random draws of the towers (dropout, patches) depend on the step, so a resumed run needs
        # no generator state. Ranks draw for their own pairs.
        torch.manual_seed(_step_seed(self._seed, number, self._ranks.rank))
        pieces = list(zip(*(rows.chunk(self._pieces) for rows in inputs.values()), strict=True))
        with self._attention():
            losses = backward_in_pieces(pieces, encode, terms, self.scaler.scale)
        # Before the check for overflow: a rank without one in its own share would take the step
        # that another one skips.
        average_gradients(parameters, self._ranks)
        return losses

    def update(
        self,
        terms: Terms,
        phase: Phase,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
    ) -> Callable[[], StepNumbers]:
        """Take a step, unless a loss term or the gradient is not finite; return how to read it.

        The returned function waits for the step's numbers. It raises `TrainingError` if the step
        was not taken and a smaller loss scale would not help. Call it before the next update.
        """
        self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        # Across all ranks: if one does not take the step, none does.
        losses = average_over(self._ranks, torch.stack(list(terms.values())))
        checked = torch.cat([losses, norm.view(1)])
        counts = torch.tensor([float(self.skipped[reason]) for reason in REASONS])
        skipped = average_over(self._ranks, self._uploaded({"skipped": counts})["skipped"])
        skipped *= self._ranks.size
        # A fused optimiser does nothing if this is 1; gradient scalers skip steps in this way.
        optimizer.found_inf = 1 - checked.isfinite().all().float()  # type: ignore[attr-defined]
        optimizer.step()
        self.scaler.update()
        scale = getattr(self._model, "logit_scale", None)
        if scale is not None and scale.requires_grad:
            with torch.no_grad():
                scale.clamp_(0, math.log(self._objective.largest_scale))
        on_gpu = self._upload_stream is not None
        numbers = torch.cat([skipped, checked, self.scale.detach().view(1)])
        numbers = numbers.to("cpu", non_blocking=on_gpu)
        device, ended = self._estimator.device, time.monotonic()
        done = torch.cuda.current_stream(device).record_event() if on_gpu else None

        def read() -> StepNumbers:
            if done is not None:
                done.synchronize()
            counts, (*means, gradient_norm, logit_scale) = (
                part.tolist() for part in numbers.tensor_split([len(REASONS)])
            )
            by_reason = {r: round(n) for r, n in zip(REASONS, counts, strict=True) if round(n)}
            values = dict(zip(terms, means, strict=True))
            self._check(values, gradient_norm, phase)
            end = ended if done is None else time.monotonic()
            return StepNumbers(values, gradient_norm, logit_scale, end, by_reason)

        return read

    def _check(self, terms: dict[str, float], gradient_norm: float, phase: Phase) -> None:
        """Raise `TrainingError` for a term or a gradient that is not finite.

        Such a gradient only skips its step as long as a smaller loss scale may help.
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
        """Return the terms of the whole batch, or this rank's share of them if that suffices."""
        if self._ranks.size > 1:
            pairs = len(facts.weights) // self._ranks.size
            rows_of_rank = slice(self._ranks.rank * pairs, (self._ranks.rank + 1) * pairs)
            terms = self._objective.local_terms(whole, rows_of_rank, self.scale, facts, phase)
            if terms is not None:
                return terms
        return self._objective.terms(whole, self.scale, facts, phase)

    def _attention(self) -> AbstractContextManager[None]:
        """Choose the attention kernel: on a CPU, the fused one has a slow backward pass."""
        if self._estimator.device.type != "cpu":
            return nullcontext()
        chosen: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
        return chosen

    def _inputs(self, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Return the inputs that the towers, or else the objective, read of a batch."""
        if batch.features is not None:
            return dict(zip(("images", "texts"), batch.features, strict=True))
        tokens = batch.tokens
        if tokens is None:
            tokens = self._estimator.batch_tokens(batch.captions)
        return {"images": batch.pixels, "texts": tokens}

    def _uploaded(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors on the device; on a GPU the copy overlaps with computation."""
        device, stream = self._estimator.device, self._upload_stream
        if stream is None:
            return {name: tensor.to(device) for name, tensor in tensors.items()}
        with torch.cuda.stream(stream):
            # torch keeps pinned blocks and reuses one once its upload has finished.
            uploaded = {
                name: tensor.pin_memory().to(device, non_blocking=True)
                for name, tensor in tensors.items()
            }
        compute = torch.cuda.current_stream(device)
        compute.wait_stream(stream)
        for tensor in uploaded.values():
            tensor.record_stream(compute)
        return uploaded


def backward_in_pieces(
    pieces: Sequence[Piece],
    encode: Callable[[Piece], Embeddings],
    terms: Callable[[Embeddings], Terms],
    scale_loss: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
) -> Terms:
    """Backpropagate a loss over a batch encoded in pieces; return the detached terms.

    `encode` returns named (b, d) embeddings of a piece; `terms` takes them joined to (B, d). With
    one piece nothing is encoded twice. `scale_loss` is a gradient scaler's.

    GradCache (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup"): the loss needs all embeddings at once, but only the embeddings. The pieces are encoded
    without keeping activations; after the loss and its gradient with respect to the embeddings,
    each piece is encoded again and its share of that gradient backpropagated. The result is the
    gradient of the whole batch, not the mean of smaller ones.
    """
    if len(pieces) == 1:
        losses = terms(encode(pieces[0]))
        scale_loss(total(losses)).backward()
        return {name: value.detach() for name, value in losses.items()}
    states, encoded = [], []
    with torch.no_grad():
        for piece in pieces:
            states.append(_random_state())
            encoded.append(encode(piece))
    whole = {
        name: torch.cat([embeddings[name] for embeddings in encoded]).requires_grad_(True)
        for name in encoded[0]
    }
    losses = terms(whole)
    scale_loss(total(losses)).backward()
    start = 0
    for piece, state, embeddings in zip(pieces, states, encoded, strict=True):
        rows = len(next(iter(embeddings.values())))
        with _drawing_from(*state):  # dropout must be the same in both passes
            again = encode(piece)
        surrogate = [
            (again[name] * gradient[start : start + rows]).sum()
            for name, embedding in whole.items()
            if (gradient := embedding.grad) is not None and again[name].requires_grad
        ]
        if surrogate:
            torch.stack(surrogate).sum().backward()
        start += rows
    return {name: value.detach() for name, value in losses.items()}


def _random_state() -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the states of torch's generators, for the processor and the used GPU."""
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), gpu


@contextmanager
def _drawing_from(state: torch.Tensor, gpu_state: torch.Tensor | None) -> Iterator[None]:
    """Make torch's generators continue from these states within the context, and restore them."""
    with torch.random.fork_rng([] if gpu_state is None else [torch.cuda.current_device()]):
        torch.set_rng_state(state)
        if gpu_state is not None:
            torch.cuda.set_rng_state(gpu_state)
        yield


def _facts(batch: TrainBatch) -> dict[str, torch.Tensor]:
    """Return the facts about this rank's pairs, by the names of `GlobalBatch`."""
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
    """Return a 63-bit seed for a run's seed and step; neighbouring steps have unrelated ones."""
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
