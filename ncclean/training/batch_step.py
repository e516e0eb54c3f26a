"""One optimiser step: a rank's batch in, checked and averaged gradients, one step out."""

from __future__ import annotations

import hashlib
import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ncclean.data.weighted_loader import TrainBatch
from ncclean.errors import TrainingError
from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import token_lengths
from ncclean.training.adversary import Adversaries
from ncclean.training.distributed import gather_with_gradients
from ncclean.training.grad_cache import backward_in_pieces
from ncclean.training.gradient_average import GradientAverage
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Objective, Phase, Terms
from ncclean.training.objectives.pair_memory import pair_keys
from ncclean.training.process_group import Ranks, average_over

_LARGEST_SCALE = 100.0
_ADVICE = "nothing was changed by this step: use a smaller learning rate, or fp32"


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
        # Gradients of half precision need it; with bf16 and fp32 it does nothing.
        self.scaler = torch.amp.GradScaler(
            estimator.device.type, enabled=estimator.precision == "fp16"
        )

    @property
    def scale(self) -> torch.Tensor:
        """The logit scale of the model, with gradients."""
        scale: torch.Tensor = self._model.logit_scale.float().exp()  # type: ignore[operator]
        return scale

    def take(
        self,
        batch: TrainBatch,
        number: int,
        phase: Phase,
        optimizer: torch.optim.Optimizer,
        average: GradientAverage,
    ) -> tuple[dict[str, float], float]:
        """Take an optimiser step on a batch; returns the loss terms and the norm of the gradient.

        `number` counts the steps of the run. Raises `TrainingError`, before anything is changed, if
        a term or the gradient is not finite.
        """
        facts = self._gathered_facts(batch, number)
        optimizer.zero_grad(set_to_none=True)
        features = batch.features
        tokens = self._tokens(batch.captions) if features is None else torch.empty(0)
        rows = torch.arange(len(batch.captions)).chunk(self._pieces)
        reported: dict[str, float] = {}

        def encode(piece: torch.Tensor) -> Embeddings:
            device = self._estimator.device
            if features is not None:
                image, text = (modality[piece].to(device) for modality in features)
                return self._objective.encode_features(image, text, phase)
            pixels = self._estimator.normalized(batch.pixels[piece])
            with self._estimator.autocast():
                return self._objective.encode(self._model, pixels, tokens[piece].to(device), phase)

        def terms(local: Embeddings) -> Terms:
            whole = {name: gather_with_gradients(value) for name, value in local.items()}
            if self.adversaries is not None:
                self.adversaries.step(whole, facts)
            losses = self._terms(whole, facts, phase)
            reported.update(self._finite(losses, phase))
            return losses

        # What the towers draw (dropout, patches) belongs to the step, so that a resumed run needs
        # no state of a generator. Ranks draw for pairs of their own.
        torch.manual_seed(_step_seed(self._seed, number, self._ranks.rank))
        with self._attention():
            # Averaged before anyone looks for an overflow: a rank that found none in its own share
            # would take the step that another one skips.
            backward_in_pieces(list(rows), encode, terms, self.scaler.scale, average.during())
        self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(average.parameters, self._clip_norm)
        if not torch.isfinite(norm):
            self._check_overflow(phase)
        self.scaler.step(optimizer)
        self.scaler.update()
        scale = getattr(self._model, "logit_scale", None)
        if scale is not None and scale.requires_grad:
            with torch.no_grad():
                scale.clamp_(0, math.log(_LARGEST_SCALE))
        return reported, float(norm)

    def _check_overflow(self, phase: Phase) -> None:
        """A gradient that is not finite is skipped as long as a smaller loss scale may mend it."""
        if not self.scaler.is_enabled() or self.scaler.get_scale() < 1:
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

    def _finite(self, losses: Terms, phase: Phase) -> dict[str, float]:
        """The terms as numbers, means over ranks: if one stops, all stop at the same step."""
        means = average_over(self._ranks, torch.stack(list(losses.values())).detach())
        values = dict(zip(losses, means.tolist(), strict=True))
        for name, value in values.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"the term {name!r} of {self._objective.name} is {value} in phase "
                    f"{phase.name}; {_ADVICE}"
                )
        return values

    def _attention(self) -> AbstractContextManager[None]:
        """Choose the attention kernel: on a CPU, the fused one has a slow backward."""
        if self._estimator.device.type != "cpu":
            return nullcontext()
        chosen: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
        return chosen

    def _tokens(self, captions: list[str]) -> torch.Tensor:
        tokens = self._estimator.tokenize(captions)
        if self._estimator.trims_text:
            tokens = tokens[:, : int(token_lengths(tokens).max())]
        return tokens

    def _gathered_facts(self, batch: TrainBatch, step: int) -> GlobalBatch:
        """The facts about the pairs of all ranks, in the order of their embeddings."""
        device = self._estimator.device
        truth = batch.is_noisy
        if truth is None:
            truth = torch.full((len(batch.uids),), -1, dtype=torch.int8)
        return GlobalBatch(
            weights=gather_with_gradients(batch.weights.to(device)),
            is_forget=gather_with_gradients(batch.is_forget.to(device)),
            keys=gather_with_gradients(pair_keys(batch.pair_names or batch.uids).to(device)),
            is_noisy=gather_with_gradients(truth.to(device)),
            seed=_step_seed(self._seed, step),
        )


def _step_seed(*numbers: int) -> int:
    """A seed of 63 bits for a run's seed and step; neighbouring steps have unrelated ones."""
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
