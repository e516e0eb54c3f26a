"""The entangled control of DisNCL: halves that must give the features back.

"Disentangled Noisy Correspondence Learning", Fig. 4: the model without L_Dis and L_reg is "further
trained with using (V_S, V_X), (T_S, T_X) to reconstruct (V, T)", so that its halves hold all of the
input, however mixed. The paper says no more; here the features F_V and F_T are reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from ncclean.models.heads import perceptron
from ncclean.training.objectives.disncl_information import seen


class Decoders(nn.ModuleDict):
    """One for each modality, of the heads' shape: both of its halves -> its features."""

    def __init__(
        self,
        feature_dim: int,
        head_dim: int,
        hidden_dim: int = 256,
        *,
        form: Literal["directions", "raw"] = "directions",
    ) -> None:
        super().__init__(
            {
                modality: perceptron(2 * head_dim, hidden_dim, feature_dim)
                for modality in ("image", "text")
            }
        )
        self.form = form


def unexplained_share(decoders: Decoders, embeddings: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Reconstruction loss: share of the features' variance that the decoders miss, both summed.

    Of the (N, ...) embeddings of `disncl.encoder_terms`. A decoder that always gives the mean has
    1. The features are the target and get no gradient, or the towers could make them easy. Of no
    pairs it is a zero that is attached to the graph.
    """
    shares = []
    for modality, decoder in decoders.items():
        halves = [
            seen(embeddings[f"{modality}_{half}"], decoders.form)
            for half in ("invariant", "exclusive")
        ]
        target = _standardised(seen(embeddings[modality].detach(), decoders.form))
        error = (decoder(torch.cat(halves, dim=1)) - target).square()
        shares.append(error.sum() / max(1, error.numel()))
    return torch.stack(shares).sum()


def _standardised(features: torch.Tensor) -> torch.Tensor:
    """(N, d) -> mean 0 in each dimension, variance 1 over all of them together.

    Together: a dimension in which features hardly differ should not count as much as the others.
    """
    centred = features - features.sum(dim=0) / max(1, len(features))
    variance = centred.square().sum() / max(1, centred.numel())
    return centred / variance.sqrt().clamp_min(torch.finfo(variance.dtype).tiny)
