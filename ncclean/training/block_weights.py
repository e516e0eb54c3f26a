"""How each method would weigh the pairs of a batch, from a model's embeddings alone."""

from __future__ import annotations

import numpy as np
import torch

from ncclean.scoring.disncl import mutual_match
from ncclean.scoring.ncu import clean_confidence, forget_mask
from ncclean.training.objectives.bayes import posterior_mean_weights
from ncclean.training.options import BayesOptions


def block_beliefs(
    image: torch.Tensor,
    text: torch.Tensor,
    scale: float,
    *,
    forget_percent: float = 10.0,
    bayes: BayesOptions | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """(N, d) L2-normalised embeddings of one block -> (N,) weights or splits by each method.

    They are those of a training batch of this size. `bayes_weight` is the posterior mean
    of w_pos, normalised to mean 1 per row and averaged over both directions.
    """
    similarity = image.float() @ text.float().T
    confidence = clean_confidence(similarity, scale)
    options = bayes or BayesOptions()
    log_s = scale * similarity if options.mode == "strict" else similarity
    generator = torch.Generator(log_s.device).manual_seed(seed)
    weights = [
        posterior_mean_weights(cosines, options, generator=generator)
        for cosines in (log_s, log_s.T)
    ]
    by_method = {
        "similarity": similarity.diagonal(),
        "ncu_confidence": confidence,
        "ncu_retain": ~forget_mask(confidence, forget_percent),
        "disncl_clean": mutual_match(similarity),
        "bayes_weight": (weights[0] + weights[1]) / 2,
    }
    return {name: values.float().cpu().numpy() for name, values in by_method.items()}
