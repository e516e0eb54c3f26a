"""DisNCL as the trainer sees it: heads that train with or without the towers, and adversaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from ncclean.models.heads import Heads, HeadsConfig, write_heads
from ncclean.models.text_tower import encode_text
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Objective, Phase, Terms
from ncclean.training.objectives.disncl import (
    DisnclOptions,
    control_terms,
    discriminator_terms,
    encoder_terms,
    filtered,
    warm_up,
)
from ncclean.training.objectives.disncl_information import Discriminators
from ncclean.training.objectives.disncl_reconstruction import Decoders

WARM_UP, DISENTANGLING = "warm-up", "disentangling"


class Disncl(Objective):
    """Phase one aligns all pairs; phase two filters, disentangles and aligns the clean ones."""

    name = "disncl"

    def __init__(
        self,
        options: DisnclOptions,
        *,
        learning_rate: float = 2e-4,
        epochs: int = 10,
        warmup: float = 0.1,
    ) -> None:
        """`learning_rate` is that of the heads; `epochs` those of phase two."""
        self.options = options
        self.adversary_steps = options.discriminator_steps
        rates = {"heads": learning_rate}
        if not options.freeze_towers:
            rates |= dict.fromkeys(("image", "text"), options.tower_rate * learning_rate)
        first, second = rates, rates
        if options.disentangle == "reconstruction":
            second = rates | {"decoders": learning_rate}
        phases = (
            Phase(name=WARM_UP, epochs=options.warmup_epochs, learning_rates=first, warmup=warmup),
            Phase(name=DISENTANGLING, epochs=epochs, learning_rates=second, warmup=warmup),
        )
        super().__init__(tuple(phase for phase in phases if phase.epochs))
        self._rate = options.discriminator_rate * learning_rate
        self._heads: Heads | None = None
        self._discriminators: Discriminators | None = None
        self._decoders: Decoders | None = None
        self._last: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """DisNCL's heads, and the discriminators or decoders that train them."""
        options, dim = self.options, feature_dim(model)
        config = HeadsConfig(
            feature_dim=dim,
            hidden_dim=options.hidden_dim,
            dim=options.dim,
            temperature=options.temperature,
        )
        self._heads = Heads(config)
        modules: dict[str, nn.Module] = {"heads": self._heads}
        sizes, form = (dim, options.dim, options.hidden_dim), options.discriminator_input
        if options.disentangle == "information":
            modules["discriminators"] = self._discriminators = Discriminators(*sizes, form=form)
        elif options.disentangle == "reconstruction":
            modules["decoders"] = self._decoders = Decoders(*sizes, form=form)
        return modules

    def encode(
        self, model: nn.Module, pixels: torch.Tensor, tokens: torch.Tensor, phase: Phase
    ) -> Embeddings:
        """Unnormalised features of images and captions, with invariant and exclusive halves."""
        image = model.encode_image(pixels)  # type: ignore[operator]
        return self.encode_features(image, encode_text(model, tokens, normalize=False), phase)

    def encode_features(self, image: torch.Tensor, text: torch.Tensor, phase: Phase) -> Embeddings:
        """Invariant and exclusive halves of (B, d) features that were computed before."""
        assert self._heads is not None, "modules() comes first"
        heads = self._heads
        embeddings = {
            "image_invariant": heads.image_invariant(image),
            "text_invariant": heads.text_invariant(text),
        }
        if phase.name == DISENTANGLING and self.options.disentangle != "none":
            embeddings |= {
                "image": image, "image_exclusive": heads.image_exclusive(image),
                "text": text, "text_exclusive": heads.text_exclusive(text),
            }  # fmt: skip
        return {name: value.float() for name, value in embeddings.items()}

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Loss terms: L_align in the warm-up, Eq. 8 or that of a control afterwards."""
        self._last = *filtered(embeddings), batch.is_noisy
        if phase.name == WARM_UP:
            return warm_up(embeddings, self.options)
        if self._discriminators is None:
            return control_terms(embeddings, self._decoders, self.options)
        self._discriminators.eval()  # no power iteration: they must not change in this step
        return encoder_terms(embeddings, self._discriminators, self.options)

    def adversaries(self, phase: Phase) -> Mapping[str, float]:
        """Learning rates of the discriminators, which train in the second phase."""
        trains = phase.name == DISENTANGLING and self.options.disentangle == "information"
        return {"discriminators": self._rate} if trains else {}

    def adversary_terms(self, embeddings: Embeddings, batch: GlobalBatch, phase: Phase) -> Terms:
        """Loss terms of the discriminators: minus the bound of each."""
        assert self._discriminators is not None, "modules() comes first"
        self._discriminators.train()
        return discriminator_terms(embeddings, self._discriminators)

    def statistics(self) -> dict[str, float]:
        """Share of the batch that passes DisNCL's filter, also of clean and noisy pairs if known.

        `clean/noisy_share` is the share of noisy pairs that pass, `clean/clean_share` of clean
        ones.
        """
        if self._last is None:
            return {}
        own, clean, is_noisy = self._last
        statistics = {"clean/share": float(clean.float().mean()), "similarity": float(own.mean())}
        for name, value in (("clean", 0), ("noisy", 1)):
            if is_noisy is not None and bool((is_noisy == value).any()):
                statistics[f"clean/{name}_share"] = float(clean[is_noisy == value].float().mean())
        return statistics

    def save(self, folder: Path) -> None:
        """Write DisNCL's heads into the model's folder."""
        assert self._heads is not None, "modules() comes first"
        write_heads(self._heads, folder)


@torch.no_grad()
def feature_dim(model: nn.Module) -> int:
    """Width of a model's embeddings, found by encoding a text of one token."""
    device = next(model.parameters()).device
    tokens = torch.ones(1, 1, dtype=torch.long, device=device)
    return int(encode_text(model, tokens, normalize=False).shape[1])
