"""One step of each objective, made by its name, against the papers' formulas written out here.

The references share no loss with the library: only its towers, its prompt, its sampling of random
weights and its transport, which have tests of their own. So an objective that is wired to another
one's loss, to the wrong rate or to no weights does not pass.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import math

import pytest
import torch
import torch.nn.functional as F

from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import encode_text, token_lengths
from ncclean.training.objectives.base import Phase
from ncclean.training.objectives.bayes import sample_log_weights
from ncclean.training.objectives.decl import sample_log_u
from ncclean.training.objectives.options import (
    BayesOptions,
    NcuOptions,
    ObjectiveOptions,
)
from ncclean.training.objectives.registry import METHODS, make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.parameter_groups import make_optimizer, parameter_groups, set_learning_rates
from ncclean.training.trainer import Trainer
from ncclean.training.transport import masked_sinkhorn
from tests.training.batches import FixedBatches, tiny_estimator

ROWS, RATE, SEED = 12, 1.0, 3
DECAY, NORM, TOLERANCE = 0.01, 1e6, 1e-3
# Steps that grow with the gradient, see `batches.LINEAR`; decay is seen beside them.
TRAINING = TrainOptions(eps=1.0, weight_decay=DECAY, clip_norm=NORM, tensorboard=False, seed=SEED)


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


def softclip(v, t, scale, temperature):
    logits = scale * v @ t.T
    total = 0
    for own, each in ((v.detach(), logits), (t.detach(), logits.T)):
        target = 0.5 * torch.eye(len(own)) + 0.5 * (own @ own.T / temperature).softmax(1)
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
        u = sample_log_u(each.detach(), None, 0.5, draws).exp()
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


ALL = {"image": 1.0, "text": 1.0, "scale": 1.0}
TOWERS = {"image": 1.0, "text": 1.0}
NCU = {"prompt_epochs": 0, "ncu": NcuOptions(forget_percent=25)}
TABLE = NcuOptions(split="table")
# Name of the case: method, options, rates in units of the learning rate, the loss.
CASES = {
    "clip": ("clip", {}, ALL, lambda e, b: clip(*e[:3])),
    "osa": ("osa", {}, ALL, lambda e, b: osa(*e[:3], b)),
    "osa, normalized": (
        "osa", {"normalize_weights": True}, ALL, lambda e, b: osa(*e[:3], b, normalized=True),
    ),
    "gradient_ascent": (
        "gradient_ascent", NCU, ALL,
        lambda e, b: gradient_ascent(*e[:3], least_confident(*e[:3], 25)),
    ),
    "gradient_ascent, table": (
        "gradient_ascent", {"ncu": TABLE}, ALL, lambda e, b: gradient_ascent(*e[:3], b.is_forget),
    ),
    "softclip": ("softclip", {}, ALL, lambda e, b: softclip(*e[:3], 0.07)),
    "softclip, warm": (
        "softclip", {"softclip_temperature": 0.5}, ALL, lambda e, b: softclip(*e[:3], 0.5),
    ),
    "cyclip": ("cyclip", {}, ALL, lambda e, b: cyclip(*e[:3])),
    "rince": ("rince", {}, TOWERS, lambda e, b: rince(*e[:3])),
    "decl": ("decl", {}, ALL, lambda e, b: decl(*e[:3])),
    "bayes": ("bayes", {}, ALL, lambda e, b: bayes(*e[:3])),
    "bayes, strict": (
        "bayes", {"bayes": BayesOptions(mode="strict")}, ALL,
        lambda e, b: bayes(*e[:3], strict=True),
    ),
    "bayes, proper prior": (
        "bayes", {"bayes": BayesOptions(mode="proper_prior")}, ALL,
        lambda e, b: bayes(*e[:3], b_pos=5, b_neg=10),
    ),
    "ncu, HN": (
        "ncu", {"prompt_epochs": 1, "ncu": NCU["ncu"]}, {"text": 2.0, "prompt": 6.0},
        lambda e, b: ncu_first_phase(e[0], e[1], e[3], e[2], least_confident(*e[:3], 25)),
    ),
    "ncu, HN, table": (
        "ncu", {"prompt_epochs": 1, "ncu": TABLE}, {"text": 2.0, "prompt": 6.0},
        lambda e, b: ncu_first_phase(e[0], e[1], e[3], e[2], b.is_forget),
    ),
    "ncu, UL": (
        "ncu", NCU, ALL,
        lambda e, b: ncu_second_phase(e[0], e[1], e[3], e[2], least_confident(*e[:3], 25)),
    ),
    "ncu, UL, table, gamma": (
        "ncu", {"prompt_epochs": 0, "ncu": NcuOptions(split="table", gamma=0.2)}, ALL,
        lambda e, b: ncu_second_phase(e[0], e[1], e[3], e[2], b.is_forget, 0.2),
    ),
    "ncu, no negatives": (  # whatever epochs the prompt is given
        "ncu", {"prompt_epochs": 1, "ncu": NcuOptions(negative="none", forget_percent=25)}, ALL,
        lambda e, b: ncu_second_phase(e[0], e[1], None, e[2], least_confident(*e[:3], 25)),
    ),
}  # fmt: skip


def make(method: str, options: dict):
    given = ObjectiveOptions(**{"learning_rate": RATE, "epochs": 1, "warmup": 0.0, **options})
    return make_objective(method, given, tiny_estimator().tokenize)


class FirstBatch(FixedBatches):
    """A loader of one batch."""

    def __init__(self) -> None:
        super().__init__(steps=1, rows=ROWS, size=16)

    @property
    def batch(self):
        return self._batch(0)


def first_phase(method: str, options: dict):
    """An objective that stops after its first phase."""
    objective = make(method, options)
    objective.phases = objective.phases[:1]
    return objective


def by_group(estimator: Estimator, own: dict) -> dict[str, tuple[str, torch.nn.Parameter]]:
    """Parameters by name with the group that the papers would put them in."""
    found = {}
    for name, parameter in estimator.model.named_parameters():
        group = "image" if name.startswith("visual") else "text"
        found[name] = ("scale" if name == "logit_scale" else group, parameter)
    for group, module in own.items():
        for name, parameter in module.named_parameters():
            found[f"{group}.{name}"] = (group, parameter)
    return found


def expected_step(
    method: str, options: dict, rates: dict, loss, largest_norm: float = NORM
) -> dict[str, torch.Tensor]:
    """All parameters after the step, by autograd on the formula and AdamW's first step by hand."""
    estimator, objective, batch = tiny_estimator(), make(method, options), FirstBatch().batch
    torch.manual_seed(SEED)
    own = objective.modules(estimator.model)
    model = estimator.model.train()
    tokens = estimator.tokenize(batch.captions)
    tokens = tokens[:, : int(token_lengths(tokens).max())]
    encoded = [
        F.normalize(model.encode_image(estimator.normalized(batch.pixels)), dim=1),
        F.normalize(encode_text(model, tokens, normalize=False), dim=1),
        model.logit_scale.exp(),
    ]
    if "prompt" in own:
        encoded.append(own["prompt"](model, tokens))
    loss(encoded, batch).backward()
    named = by_group(estimator, own)
    trained = {n: p for n, (group, p) in named.items() if group in rates and p.grad is not None}
    norm = torch.stack([p.grad.square().sum() for p in trained.values()]).sum().sqrt()
    expected = {}
    with torch.no_grad():
        for name, (group, parameter) in named.items():
            value = parameter.clone()
            if name in trained:
                gradient = parameter.grad * min(1.0, largest_norm / float(norm))
                decay = DECAY if parameter.ndim >= 2 else 0.0
                rate = RATE * rates[group]
                value = value - rate * decay * value - rate * gradient / (gradient.abs() + 1.0)
            expected[name] = value.clamp(0, math.log(100)) if name == "logit_scale" else value
    return expected


@functools.cache
def expected(case: str) -> dict[str, torch.Tensor]:
    return expected_step(*CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_one_step_is_the_formula(case):
    method, options, rates, _ = CASES[case]
    estimator, objective = tiny_estimator(), first_phase(method, options)
    start = copy.deepcopy(estimator.model.state_dict())
    trainer = Trainer(estimator, objective, FirstBatch(), TRAINING, None)
    trainer.run()
    found = by_group(estimator, trainer.own)
    assert found.keys() == expected(case).keys()
    for name, (group, parameter) in found.items():
        assert torch.allclose(parameter, expected(case)[name], atol=TOLERANCE), name
        if name in start and group not in rates:
            assert torch.equal(parameter, start[name]), name
    assert max((p - start[n]).abs().max() for n, (_, p) in found.items() if n in start) > 1e-3


def test_every_method_has_a_case():
    assert {method for method, *_ in CASES.values()} | {"disncl"} == set(METHODS)


def test_the_cases_tell_losses_apart():
    """No two cases may pass for each other."""
    steps = [expected(case)["text_projection"] for case in CASES]
    for index, step in enumerate(steps):
        for other in steps[:index]:
            assert (step - other).abs().max() > 10 * TOLERANCE


def test_a_long_gradient_is_clipped():
    options = dataclasses.replace(TRAINING, clip_norm=0.01)
    trainer = Trainer(tiny_estimator(), first_phase("clip", {}), FirstBatch(), options, None)
    trainer.run()
    clipped = expected_step(*CASES["clip"], largest_norm=0.01)
    for name, (_, parameter) in by_group(trainer.estimator, {}).items():
        assert torch.allclose(parameter, clipped[name], atol=1e-6), name
    whole = expected("clip")["text_projection"]
    assert (whole - clipped["text_projection"]).abs().max() > 1e-2


def test_the_rate_rises_and_falls_along_a_cosine():
    """10 steps, 30 % of them warm-up: thirds, then half a cosine from 1 to just above 0."""
    phase = Phase(name="p", epochs=1, learning_rates={"text": 2.0, "image": 0.5})
    groups = parameter_groups(tiny_estimator().model, {})
    optimizer = make_optimizer(groups, phase)
    rates = []
    for step in range(10):
        set_learning_rates(optimizer, step, 10, 0.3)
        rates.append({group["peak"]: group["lr"] for group in optimizer.param_groups})
    cosine = [0.5 * (1 + math.cos(math.pi * step / 7)) for step in range(7)]
    expected = [1 / 3, 2 / 3, 1.0, *cosine]
    assert [rate[2.0] / 2 for rate in rates] == pytest.approx(expected)
    assert [rate[0.5] * 2 for rate in rates] == pytest.approx(expected)


def test_a_run_follows_the_schedule(monkeypatch):
    """Each phase has its own: the factors of 6 steps each, as the optimiser sees them."""
    seen = []
    step = torch.optim.AdamW.step

    def record(self, *args, **kwargs):
        seen.append({round(group["lr"] / group["peak"], 9) for group in self.param_groups})
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", record)
    options = ObjectiveOptions(
        learning_rate=1e-3, epochs=2, prompt_epochs=2, warmup=0.34, ncu=NcuOptions()
    )
    estimator = tiny_estimator()
    objective = make_objective("ncu", options, estimator.tokenize)
    Trainer(estimator, objective, FixedBatches(steps=3, size=16), TRAINING, None).run()
    cosine = [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    assert all(len(factors) == 1 for factors in seen)
    assert [factors.pop() for factors in seen] == pytest.approx([0.5, 1.0, *cosine] * 2)


def test_matrices_decay_and_gains_do_not():
    groups = parameter_groups(tiny_estimator().model, {})
    rates = {"image": 1.0, "text": 1.0, "scale": 1.0}
    optimizer = make_optimizer(groups, Phase(name="p", epochs=1, learning_rates=rates))
    for group in optimizer.param_groups:
        assert {parameter.ndim >= 2 for parameter in group["params"]} == {group["weight_decay"] > 0}
        assert group["weight_decay"] in (0.0, 0.2)
    counted = sum(len(group["params"]) for group in optimizer.param_groups)
    assert counted == len(list(tiny_estimator().model.parameters()))


def test_a_trained_scale_is_clamped_and_a_frozen_one_is_not():
    """SigLIP's scale starts above 100; an objective that does not train it must not change it."""
    for method, ends_at in (("clip", 100.0), ("rince", 117.0)):
        estimator = tiny_estimator()
        with torch.no_grad():
            estimator.model.logit_scale.fill_(math.log(117.0))
        objective = make_objective(method, ObjectiveOptions(learning_rate=1e-9, epochs=1))
        Trainer(estimator, objective, FirstBatch(), TRAINING, None).run()
        assert float(estimator.model.logit_scale.detach().exp()) == pytest.approx(ends_at, rel=1e-5)
