"""The weight that each method would give the pairs of a batch, from embeddings alone."""

from __future__ import annotations

import numpy as np
import torch

from ncclean.data.weighted_loader import WeightedLoader
from ncclean.models.estimator import Estimator
from ncclean.scoring.disncl import mutual_match
from ncclean.scoring.ncu import clean_confidence, forget_mask
from ncclean.training.objectives.bayes import gibbs_sample, normalized_weights
from ncclean.training.objectives.options import BayesOptions


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


def training_beliefs(
    estimator: Estimator,
    loader: WeightedLoader,
    forget_percent: float,
    bayes: BayesOptions,
    seed: int,
) -> tuple[list[str], np.ndarray, dict[str, np.ndarray]]:
    """Uids, truth (1, 0 or -1 for unknown) and beliefs of the N pairs of a loader, each (N,).

    The blocks are the loader's batches. `selection_weight` and `selection_retain` are what the
    selection says of a pair. A pair that the loader shows twice counts once.
    """
    uids: list[str] = []
    columns: dict[str, list[np.ndarray]] = {}
    for number, batch in enumerate(loader.epoch(0)):
        beliefs = block_beliefs(
            estimator.encode_image(batch.pixels),
            estimator.encode_text(batch.captions),
            estimator.scale,
            forget_percent=forget_percent,
            bayes=bayes,
            seed=seed + number,
        )
        uids += batch.uids
        unknown = np.full(len(batch.uids), -1.0)
        beliefs["is_noisy"] = unknown if batch.is_noisy is None else batch.is_noisy.numpy()
        beliefs["selection_weight"] = batch.weights.numpy()
        beliefs["selection_retain"] = (~batch.is_forget).float().numpy()
        for name, values in beliefs.items():
            columns.setdefault(name, []).append(values)
    first = sorted({uid: place for place, uid in reversed(list(enumerate(uids)))}.values())
    by_pair = {
        name: np.concatenate(values).astype(float)[first] for name, values in columns.items()
    }
    return [uids[place] for place in first], by_pair.pop("is_noisy"), by_pair


@torch.no_grad()
def posterior_mean_weights(
    log_similarity: torch.Tensor,
    options: BayesOptions,
    draws: int = 32,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """(N, K) log s -> (N,) posterior mean of the positive weight, normalised to mean 1 per row.

    The mean over independent chains. It falls as the similarity rises.
    """
    chains = (
        normalized_weights(gibbs_sample(log_similarity, options, generator)[0]).diagonal().clone()
        for _ in range(draws)
    )
    return torch.stack(list(chains)).mean(dim=0)
