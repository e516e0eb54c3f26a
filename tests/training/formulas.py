"""The losses of the papers, written out from their formulas.

They share no loss with the library: only its sampling of random weights and its transport, which
have tests of their own.
"""

from __future__ import annotations

import hashlib
import math

import torch
import torch.nn.functional as F

from ncclean.training.objectives.bayes import sample_log_weights
from ncclean.training.objectives.decl import draw_log_u
from ncclean.training.transport import masked_sinkhorn

SEED = 3


def generator() -> torch.Generator:
    """The draws of a run's first step."""
    digest = hashlib.blake2b(f"{SEED} 0".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def cross_entropies(logits: torch.Tensor) -> torch.Tensor:
    """(N,) of each row to its diagonal element."""
    return torch.stack([-(row[i] - row.exp().sum().log()) for i, row in enumerate(logits)])


def clip(v, t, scale):
    logits = scale * v @ t.T
    return (cross_entropies(logits).mean() + cross_entropies(logits.T).mean()) / 2


def osa(v, t, scale, batch, normalized=False):
    logits = scale * v @ t.T
    weights = batch.weights / batch.weights.mean() if normalized else batch.weights
    return (weights * (cross_entropies(logits) + cross_entropies(logits.T)) / 2).mean()


def siglip(v, t, scale, bias, weights):
    """Each pair's weight multiplies half of its row and half of its column of N^2 questions."""
    z = 2 * torch.eye(len(v)) - 1
    questions = -torch.log(torch.sigmoid(z * (scale * v @ t.T + bias)))
    return (weights * (questions.sum(1) + questions.sum(0)) / 2).mean()


def least_confident(v, t, scale, percent):
    """The forget set that the model in training names."""
    logits = (scale * v @ t.T).detach()
    confidence = (logits.softmax(1).diagonal() + logits.softmax(0).diagonal()) / 2
    forget = torch.zeros(len(v), dtype=torch.bool)
    forget[confidence.argsort()[: math.floor(len(v) * percent / 100)]] = True
    return forget


def gradient_ascent(v, t, scale, forget):
    keep = ~forget
    logits = scale * v[keep] @ t[keep].T
    smoothed = sum(
        0.9 * cross_entropies(each).mean() - 0.1 * each.log_softmax(1).mean()
        for each in (logits, logits.T)
    )
    return smoothed / 2 - clip(v[forget], t[forget], scale)


def softclip(v, t, scale, temperature, softness=0.5):
    logits = scale * v @ t.T
    total = 0
    for own, each in ((v.detach(), logits), (t.detach(), logits.T)):
        soft = (own @ own.T / temperature).softmax(1)
        target = (1 - softness) * torch.eye(len(own)) + softness * soft
        total = total - (target * each.log_softmax(1)).sum(1).mean() / 2
    return total


def cyclip(v, t, scale):
    between, images, texts = v @ t.T, v @ v.T, t @ t.T
    consistency = (images - texts).square().sum() + (between - between.T).square().sum()
    return clip(v, t, scale) + 0.25 * consistency / len(v)


def rince(v, t, scale, q=0.1, density=0.01):
    values = (scale * v @ t.T).exp()
    total = 0
    for each in (values, values.T):
        positive, everything = each.diagonal(), each.sum(1)
        total = total + (-(positive**q) / q + (density * everything) ** q / q).mean() / 2
    return total


def decl(v, t, scale):
    logits, draws = scale * v @ t.T, generator()
    total = 0
    for each in (logits, logits.T):
        u = draw_log_u(each.detach().logsumexp(dim=1), None, 0.5, draws).exp()
        total = total + (-each.diagonal() + u * each.exp().sum(1)).mean() / 2
    return total


def bayes(v, t, scale, **priors):
    logits, draws = scale * v @ t.T, generator()
    drawn_from = logits if priors.pop("strict", False) else v @ t.T
    total = 0
    for each, s in ((logits, drawn_from), (logits.T, drawn_from.T)):
        weights = sample_log_weights(s.detach(), 5, 10, generator=draws, **priors).exp()
        total = total + cross_entropies(each + weights.log()).mean() / 2
    return total


def opposites(cosine):
    return ((-0.7 - cosine).relu() + (cosine + 0.2).relu()).mean()


def ncu_first_phase(v, t, n, scale, forget):
    v, t, n = v[~forget], t[~forget], n[~forget]
    relation = ((t @ n.T - n @ t.T) ** 2).sum() / len(v)
    sign = 2 * torch.eye(len(v)) - 1
    matches, opposed = scale * (t @ v.T), scale * (n @ v.T)
    matching = -F.logsigmoid(sign * matches) - F.logsigmoid(-sign * opposed)
    return 10 * (opposites((t * n).sum(1)) + relation) + matching.sum() / len(v)


def ncu_second_phase(v, t, n, scale, forget, gamma=0.7):
    logits = v @ t.T if n is None else torch.cat([v @ t.T, (v * n).sum(1, keepdim=True)], 1)
    count, columns = logits.shape
    with torch.no_grad():
        cost = 1 - logits
        mask, identity = ~torch.diag(forget), torch.diag((~forget).float())
        if n is not None:
            mask = torch.cat([mask, forget[:, None]], 1)
            identity = torch.cat([identity, forget[:, None].float()], 1)
        marginals = torch.full((count,), 1 / count), torch.full((columns,), 1 / columns)
        plan = masked_sinkhorn(cost / cost.max(), mask, *marginals)
    total = 0.0 if n is None else opposites((t * n).sum(1))
    for each, moved, stayed in ((logits, plan, identity), (logits.T, plan.T, identity.T)):
        own = stayed.sum(1, keepdim=True)
        target = gamma * moved / moved.sum(1, keepdim=True) + (1 - gamma) * stayed / own.clamp_min(
            1
        )
        target = target / target.sum(1, keepdim=True)
        divergence = F.kl_div((scale * each).log_softmax(1), target, reduction="none")
        total = total + divergence.sum() / len(each)
    return total
