"""OSA: the CLIP loss with each pair weighted by how clean the estimator finds it.

"One-Step Anti-noise". In the paper, the weights come from a frozen estimator and a score table
(`ncclean.scoring.osa`), never from the training model; in the authors' code, a frozen copy of the
start weighs each batch, and no table is needed.
"""

from __future__ import annotations

import copy
import functools

import torch
from torch import nn

from ncclean.models.open_clip_internals import model_attribute
from ncclean.models.text_tower import encode_text
from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    LossObjective,
    Objective,
    Phase,
    Terms,
    Tokenizer,
    method_phases,
)
from ncclean.training.objectives.clip import pair_losses
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.objectives.similarity import normalized, paired_cosines

_NOISE_PAIRS = 64
_NOISE_TOKENS = 100  # the released code draws token ids below this
_SEED = 0


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create OSA's objective, as published or as released by its authors."""
    phases = method_phases(options)
    if options.ncu.variant == "released":
        return ReleasedOsa(phases)
    terms = functools.partial(osa_terms, normalize=options.normalize_weights)
    return LossObjective("osa", phases, terms, is_per_pair=True)


def osa_terms(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor,
    batch: GlobalBatch,
    rows: slice | None = None,
    *,
    normalize: bool,
) -> Terms:
    """Return OSA's loss as the one term `contrastive`, each pair weighted by the selection."""
    return {"contrastive": osa_loss(image, text, scale, batch.weights, normalize, rows)}


def osa_loss(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: torch.Tensor | float,
    weights: torch.Tensor,
    normalize: bool = False,
    rows: slice | None = None,
) -> torch.Tensor:
    """Return OSA's weighted CLIP loss, mean_i w_i (CE_i image to text + CE_i text to image) / 2.

    `image` and `text` are (N, d) L2-normalised, `weights` (N,). Pairs of weight 0 still act as
    negatives of the others. The sum is not divided by the weights, so a noisier batch takes a
    smaller step; `normalize` scales them to mean 1 instead (all-zero weights stay zero). `rows`
    limits the outer mean to those pairs.
    """
    losses = pair_losses(image, text, scale, rows=rows)
    weights = weights.to(losses.dtype)
    if normalize:
        weights = weights / weights.mean().clamp_min(torch.finfo(weights.dtype).tiny)
    return ((weights if rows is None else weights[rows]) * losses).mean()


def released_weights(logits: torch.Tensor, threshold: torch.Tensor | float) -> torch.Tensor:
    """Return (N,) weights x^2 (1 - x^2), at most 1/4, from (N,) scaled cosines of pairs.

    They are those of OSA's released code. x is the logit minus the threshold, clipped at 0, over
    its largest in the batch. So the weight falls above x = .71, and the pair with the largest
    cosine has none. A batch without a logit above the threshold has weights of 0.
    """
    above = (logits - threshold).clamp_min(0)
    share = above / above.max().clamp_min(torch.finfo(above.dtype).tiny)
    return share.square() * (1 - share.square())


class StartEstimator(nn.Module):
    """A frozen copy of the initial model, with its mean logit on noise."""

    threshold: torch.Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.register_buffer("threshold", torch.tensor(torch.nan))

    @torch.no_grad()
    def logits(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return (B,) scaled cosines of pairs by the frozen model, minus their mean on noise.

        The mean is computed at the first call.
        """
        self.model.eval()  # a trainer sets an objective's modules to training mode
        if bool(self.threshold.isnan()):
            self.threshold.copy_(self._on_noise(pixels, tokens))
        return self._pairs(pixels, tokens) - self.threshold

    def _on_noise(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean logit of all uniform noise images with all random texts."""
        generator = torch.Generator().manual_seed(_SEED)
        images = torch.rand(_NOISE_PAIRS, *pixels.shape[1:], generator=generator)
        length = model_attribute(self.model, "context_length", default=tokens.shape[1])
        texts = torch.randint(_NOISE_TOKENS, (_NOISE_PAIRS, length), generator=generator)
        image, text = self._encode(images.to(pixels), texts.to(tokens))
        return self._scale * (image.mean(dim=0) * text.mean(dim=0)).sum()

    def _pairs(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self._scale * paired_cosines(*self._encode(pixels, tokens))

    def _encode(
        self, pixels: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.model.encode_image(pixels)  # type: ignore[operator]
        text = encode_text(self.model, tokens, normalize=False)
        return normalized(image), normalized(text)

    @property
    def _scale(self) -> torch.Tensor:
        scale = self.model.logit_scale
        assert isinstance(scale, torch.Tensor)
        return scale.exp()


class ReleasedOsa(Objective):
    """OSA's objective as released: each batch is weighted by a frozen copy of the initial model."""

    name = "osa"

    def __init__(self, phases: tuple[Phase, ...]) -> None:
        super().__init__(phases)
        self._start: StartEstimator | None = None

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the frozen copy of the initial model, saved with checkpoints and never trained."""
        self._start = StartEstimator(model)
        return {"start": self._start}

    def encode(
        self, model: nn.Module, pixels: torch.Tensor, tokens: torch.Tensor, phase: Phase
    ) -> Embeddings:
        """Return L2-normalised `image` and `text`, and (B, 1) `logits` of the frozen copy."""
        assert self._start is not None, "modules() comes first"
        logits = self._start.logits(pixels, tokens)
        return {**super().encode(model, pixels, tokens, phase), "logits": logits.unsqueeze(1)}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Return OSA's loss as the term `contrastive`, weighted within the global batch."""
        weights = released_weights(embeddings["logits"].detach()[:, 0].float(), 0.0)
        return {"contrastive": osa_loss(embeddings["image"], embeddings["text"], scale, weights)}
