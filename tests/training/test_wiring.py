"""One step of each objective, made by its name, against the papers'

So an objective that is wired to another one's loss, to the wrong rate or to no weights does not
pass. The step itself shares with the library its towers and its prompt, which have tests of their
own.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import encode_text, token_lengths
from ncclean.training.objectives.options import BayesOptions, NcuOptions, ObjectiveOptions
from ncclean.training.objectives.registry import METHODS, make_objective
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer
from tests.training.batches import FixedBatches, tiny_estimator
from tests.training.formulas import (
    SEED,
    bayes,
    clip,
    cyclip,
    decl,
    gradient_ascent,
    least_confident,
    ncu_first_phase,
    ncu_second_phase,
    osa,
    rince,
    siglip,
    softclip,
)

ROWS, RATE = 12, 1.0
DECAY, NORM, TOLERANCE = 0.01, 1e6, 1e-3
# Steps that grow with the gradient, see `batches.LINEAR`; decay is seen beside them.
TRAINING = TrainOptions(eps=1.0, weight_decay=DECAY, clip_norm=NORM, tensorboard=False, seed=SEED)

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
    "siglip": ("siglip", {}, {**ALL, "bias": 1.0}, lambda e, b: siglip(*e, b.weights)),
    "rince": ("rince", {}, TOWERS, lambda e, b: rince(*e[:3])),
    "rince, trained": (
        "rince", {"rince_scale": "trained"}, ALL, lambda e, b: rince(*e[:3]),
    ),
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
    if "bias" in own:
        encoded.append(own["bias"].value)
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
    steps = [expected(case) for case in CASES]
    for step, other in itertools.combinations(steps, 2):
        assert any(
            (step[name] - other[name]).abs().max() > 10 * TOLERANCE
            for name in ("text_projection", "logit_scale")
        )


def test_a_long_gradient_is_clipped():
    options = dataclasses.replace(TRAINING, clip_norm=0.01)
    trainer = Trainer(tiny_estimator(), first_phase("clip", {}), FirstBatch(), options, None)
    trainer.run()
    clipped = expected_step(*CASES["clip"], largest_norm=0.01)
    for name, (_, parameter) in by_group(trainer.estimator, {}).items():
        assert torch.allclose(parameter, clipped[name], atol=1e-6), name
    whole = expected("clip")["text_projection"]
    assert (whole - clipped["text_projection"]).abs().max() > 1e-2
