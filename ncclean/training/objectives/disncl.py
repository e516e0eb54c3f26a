"""DisNCL: separate what image and caption share from what only one of them has, then align it.

"Disentangled Noisy Correspondence Learning". The sum of its losses, Eq. 8, over a batch's clean
pairs, and the objective: heads that train with or without the towers, and adversaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from ncclean.models.heads import Heads, HeadsConfig, write_heads
from ncclean.models.text_tower import encode_text
from ncclean.scoring.disncl import mutual_match
from ncclean.training.objectives.base import (
    Embeddings,
    GlobalBatch,
    Objective,
    Phase,
    Terms,
    Tokenizer,
)
from ncclean.training.objectives.disncl_losses import (
    LEAKS,
    OVERLAPS,
    PAIRS,
    Decoders,
    Discriminators,
    adversarial_bound,
    all_hinges,
    all_negatives_loss,
    hinges,
    jsd_bound,
    ranking_loss,
    soft_alignment_loss,
    soft_losses,
    soft_margin,
    unexplained_share,
    without_own,
)
from ncclean.training.objectives.options import DisnclOptions, ObjectiveOptions
from ncclean.training.objectives.similarity import (
    ALL,
    both_ways,
    by_rows,
    cosines,
    paired_cosines,
    row_cosines,
)

WARM_UP, DISENTANGLING = "warm-up", "disentangling"


def make(options: ObjectiveOptions, tokenizer: Tokenizer | None = None) -> Objective:
    """Create DisNCL's objective."""
    return Disncl(
        options.disncl,
        learning_rate=options.learning_rate or 2e-4,
        epochs=10 if options.epochs is None else options.epochs,
        warmup=options.warmup,
    )


class Disncl(Objective):
    """DisNCL's objective: phase one aligns all pairs; phase two filters and disentangles.

    In phase two, only the pairs that the filter considers clean are aligned.
    """

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
        """Return unnormalised features of both sides, with invariant and exclusive halves."""
        image = model.encode_image(pixels)  # type: ignore[operator]
        return self.encode_features(image, encode_text(model, tokens, normalize=False), phase)

    def encode_features(self, image: torch.Tensor, text: torch.Tensor, phase: Phase) -> Embeddings:
        """Return invariant and exclusive halves of (B, d) precomputed features."""
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
        """Return DisNCL's loss terms: L_align in the warm-up, then Eq. 8 or a control's."""
        self._last = *filtered(embeddings), batch.is_noisy
        if phase.name == WARM_UP:
            return warm_up(embeddings, self.options)
        if self._discriminators is None:
            return control_terms(embeddings, self._decoders, self.options)
        self._discriminators.eval()  # no power iteration: they must not change in this step
        return encoder_terms(embeddings, self._discriminators, self.options)

    def adversaries(self, phase: Phase) -> Mapping[str, float]:
        """Return learning rates of the discriminators, which train in the second phase."""
        trains = phase.name == DISENTANGLING and self.options.disentangle == "information"
        return {"discriminators": self._rate} if trains else {}

    def adversary_terms(self, embeddings: Embeddings, batch: GlobalBatch, phase: Phase) -> Terms:
        """Return the loss terms of the discriminators: minus the bound of each."""
        assert self._discriminators is not None, "modules() comes first"
        self._discriminators.train()
        return discriminator_terms(embeddings, self._discriminators)

    def statistics(self) -> dict[str, float]:
        """Return the share of the batch that passes DisNCL's filter, also of clean and noisy pairs.

        If the truth is known, `clean/noisy_share` is the share of noisy pairs that pass, and
        `clean/clean_share` that of clean ones.
        """
        if self._last is None:
            return {}
        paired, clean, is_noisy = self._last
        statistics = {
            "clean/share": float(clean.float().mean()),
            "similarity": float(paired.mean()),
        }
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
    """Return the width of a model's embeddings, found by encoding a text of one token."""
    device = next(model.parameters()).device
    tokens = torch.ones(1, 1, dtype=torch.long, device=device)
    return int(encode_text(model, tokens, normalize=False).shape[1])


def _invariant(embeddings: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """V_S and T_S, L2-normalised."""
    image, text = (
        F.normalize(embeddings[f"{side}_invariant"], dim=-1) for side in ("image", "text")
    )
    return image, text


@torch.no_grad()
def clean_pairs(similarity: torch.Tensor) -> torch.Tensor:
    """Return DisNCL's filter as (N,) bool: pairs that match best mutually (Eq. 2).

    `similarity` (N, N) are cosines.
    """
    return mutual_match(similarity)


@torch.no_grad()
def filtered(embeddings: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N,) cosines of the pairs, and (N,) bool: which ones DisNCL's filter calls clean."""
    image, text = _invariant(embeddings)

    def of(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        if rows == ALL:
            similarity = cosines(image, text)
            return similarity.diagonal().clone(), clean_pairs(similarity)
        paired, is_best = [], []
        for direction in both_ways(image, text, rows):
            # Each uses its own diagonal: the two products may round differently.
            paired.append(direction.diagonal(rows.start).clone())
            is_best.append((paired[-1][:, None] >= direction).all(dim=1))
        return paired[0], is_best[0] & is_best[1]

    paired, clean = zip(*by_rows(of, len(image)), strict=True)
    return torch.cat(paired), torch.cat(clean)


def warm_up_terms(similarity: torch.Tensor, options: DisnclOptions) -> Terms:
    """Loss terms of DisNCL's warm-up: L_align with a constant margin, without a filter."""
    if options.warmup_negatives == "all":
        return {"align": all_negatives_loss(similarity, options.alpha)}
    everyone = torch.ones(len(similarity), dtype=torch.bool, device=similarity.device)
    return {"align": ranking_loss(similarity, everyone, options.alpha)}


def warm_up(embeddings: Mapping[str, torch.Tensor], options: DisnclOptions) -> Terms:
    """Return the loss terms of DisNCL's warm-up, from the invariant halves V_S and T_S."""
    image, text = _invariant(embeddings)
    n = len(image)

    def loss(rows: slice) -> torch.Tensor:
        if rows == ALL:
            return warm_up_terms(cosines(image, text), options)["align"]
        first = rows.start
        if options.warmup_negatives == "all":
            similarity, paired = row_cosines(image, text, rows), paired_cosines(image, text)
            return all_hinges(similarity, paired, options.alpha, first) / (n * (n - 1))
        directions = tuple(both_ways(image, text, rows))
        others = [without_own(direction, first) for direction in directions]
        return hinges(directions[0].diagonal(first), others, options.alpha).sum() / n

    return {"align": torch.stack(by_rows(loss, n)).sum()}


def encoder_terms(
    embeddings: Mapping[str, torch.Tensor], discriminators: Discriminators, options: DisnclOptions
) -> Terms:
    """Loss terms of DisNCL for encoders and heads (Eq. 8), named scalars.

    `embeddings` are the (N, ...) features `image` and `text` before normalisation and their
    `_invariant` and `_exclusive` halves. `invariant` and `compression` are gamma L_S, `exclusive`
    and `leaks` (1 - gamma) L_X in the form of Eq. 11, `overlap` L_reg.
    """
    _, clean = filtered(embeddings)
    terms = _retrieval_terms(embeddings, clean, options)
    chosen = {name: value[clean] for name, value in embeddings.items()}

    def raised(name: str) -> torch.Tensor:
        return jsd_bound(*discriminators.logits(name, chosen))

    def lowered(names: Mapping[str, tuple[str, str]]) -> torch.Tensor:
        bounds = [
            adversarial_bound(*discriminators.logits(name, chosen), options.bounded_adversary)
            for name in names
        ]
        return torch.stack(bounds).sum()

    gamma = options.gamma
    invariant = raised("text_in_image_invariant") + raised("image_in_text_invariant")
    exclusive = raised("image_in_image_exclusive") + raised("text_in_text_exclusive")
    terms |= {
        "invariant": -gamma * invariant,
        "compression": gamma * options.beta1 * compression(chosen, options),
        "exclusive": -(1 - gamma) * exclusive,
        "leaks": (1 - gamma) * (1 + options.beta2) * lowered(LEAKS),
    }
    if options.regularize:
        terms["overlap"] = lowered(OVERLAPS)
    return terms


def control_terms(
    embeddings: Mapping[str, torch.Tensor], decoders: Decoders | None, options: DisnclOptions
) -> Terms:
    """Loss terms of the control without L_Dis and L_reg: L_align and L_soft.

    With decoders also `reconstruction`, which makes the halves of each clean pair reproduce its
    features: the entangled model compared in the paper's Fig. 4.
    """
    _, clean = filtered(embeddings)
    terms = _retrieval_terms(embeddings, clean, options)
    if decoders is not None:
        chosen = {name: value[clean] for name, value in embeddings.items()}
        terms["reconstruction"] = unexplained_share(decoders, chosen)
    return terms


def compression(halves: Mapping[str, torch.Tensor], options: DisnclOptions) -> torch.Tensor:
    """Return DisNCL's compression (Eq. 10): mean squared distance of the invariant halves, summed.

    Both directions of a pair's V_S and T_S: KL of unit Gaussians is half the squared distance of
    their means; both directions give all of it. Computed on unit vectors, where it is 2 - 2 cos:
    short halves would make a raw distance small, which nothing else would notice.
    `discriminator_input="raw"` computes it raw, since the discriminators then see lengths, too.
    """
    image, text = halves["image_invariant"], halves["text_invariant"]
    if options.discriminator_input == "directions":
        image, text = F.normalize(image, dim=1), F.normalize(text, dim=1)
    return (image - text).square().sum() / max(1, len(image))


def _retrieval_terms(
    embeddings: Mapping[str, torch.Tensor], clean: torch.Tensor, options: DisnclOptions
) -> Terms:
    """Return L_align and, unless it is switched off, L_soft."""
    image, text = _invariant(embeddings)
    softening = options.beta3, options.reverse, options.mask_noisy

    def losses(rows: slice) -> torch.Tensor:
        if rows == ALL:  # both directions share terms of the matrix
            similarity = cosines(image, text)
            margin = soft_margin(similarity.diagonal(), options.alpha, options.m)
            both = [ranking_loss(similarity, clean, margin)]
            if options.soften:
                soft = soft_alignment_loss(similarity, clean, options.temperature, *softening)
                both.append(soft)
            return torch.stack(both)
        first, directions = rows.start, tuple(both_ways(image, text, rows))
        paired = directions[0].diagonal(first)
        margin = soft_margin(paired, options.alpha, options.m)
        both = [hinges(paired, [without_own(direction, first) for direction in directions], margin)]
        if options.soften:
            logits = [direction / options.temperature for direction in directions]
            both.append(soft_losses(logits, clean, *softening, first))
        return torch.stack(both)[:, clean[rows]].sum(dim=1) / max(1, int(clean.sum()))

    sums = torch.stack(by_rows(losses, len(image))).sum(dim=0)
    return dict(zip(("align", "soft"), sums.unbind(), strict=False))


def discriminator_terms(
    embeddings: Mapping[str, torch.Tensor], discriminators: Discriminators
) -> Terms:
    """Return the loss terms of DisNCL's eight discriminators: minus the bound of each.

    They see clean pairs only.
    """
    _, clean = filtered(embeddings)
    chosen = {name: value[clean] for name, value in embeddings.items()}
    return {name: -jsd_bound(*discriminators.logits(name, chosen)) for name in PAIRS}
