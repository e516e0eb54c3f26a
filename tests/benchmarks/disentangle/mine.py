"""MINE: a neural lower bound on mutual information, computed on pairs that did not train it.

Belghazi et al. 2018, "Mutual Information Neural Estimation". I(X; Y) >= E_joint[D] - log
E_marginal[e^D] for any D (Donsker and Varadhan). Half of the pairs train D, a quarter chooses the
step, and the last quarter gives the bound: on its own training pairs a network finds information
in noise. The estimate is low for few pairs, and at most log N.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import nn

_COMPONENTS = 32


def mutual_information(
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    steps: int = 400,
    hidden_dim: int = 128,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> float:
    """(N, a) and (N, b) -> a lower bound on I(X; Y) in nats, at least 0.

    Both are first reduced to their 32 leading principal components, without whitening. Halves that
    are functions of one input share unbounded information in vanishingly small components, and
    whitening would measure only that.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    x, y = (_reduced(values, order)[order].float() for values in (x, y))
    train, choose, judge = order.new_tensor(range(len(x))).tensor_split(
        (len(x) // 2, 3 * len(x) // 4)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        critic = nn.Sequential(
            nn.Linear(x.shape[1] + y.shape[1], hidden_dim), nn.ELU(),
            nn.Linear(hidden_dim, hidden_dim), nn.ELU(),
            nn.Linear(hidden_dim, 1),
        )  # fmt: skip
    optimizer = torch.optim.Adam(critic.parameters(), learning_rate, weight_decay=1e-4)
    best, chosen = -math.inf, critic
    for step in range(steps):
        loss = -_bound(critic, x[train], y[train], generator)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 9:
            with torch.no_grad():
                held_out = float(_bound(critic, x[choose], y[choose], generator, shifts=8))
            if held_out > best:
                best, chosen = held_out, copy.deepcopy(critic)
    with torch.no_grad():
        return max(0.0, float(_bound(chosen, x[judge], y[judge], generator, shifts=32)))


def _bound(
    critic: nn.Module, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator, shifts: int = 2
) -> torch.Tensor:
    """The Donsker-Varadhan bound; the marginal from `shifts` random rotations of y."""
    joint = critic(torch.cat([x, y], dim=1)).mean()
    turns = torch.randint(1, len(y), (shifts,), generator=generator).tolist()
    marginal = torch.cat(
        [critic(torch.cat([x, y.roll(turn, dims=0)], dim=1))[:, 0] for turn in turns]
    )
    bound: torch.Tensor = joint - marginal.logsumexp(dim=0) + math.log(len(marginal))
    return bound


def _reduced(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    from sklearn.decomposition import PCA

    array = values.detach().cpu().double().numpy()
    # A half that has collapsed to one point has no components and no information.
    if not np.ptp(array, axis=0).any():
        return torch.zeros(len(array), 1)
    components = min(_COMPONENTS, array.shape[1], len(array) // 2)
    half = array[order[: len(array) // 2].numpy()]
    reduced = PCA(components, random_state=0).fit(half).transform(array)
    return torch.from_numpy(np.clip(reduced / max(reduced.std(), 1e-12), -10, 10))
