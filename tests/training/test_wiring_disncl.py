"""One step of both phases of DisNCL against its formulas, as in `test_wiring`.

The heads, decoders and discriminators are the library's; what is done with them is written out.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from ncclean.models.text_tower import encode_text, token_lengths
from ncclean.training.objectives import disncl
from ncclean.training.objectives.options import DisnclOptions
from ncclean.training.trainer import Trainer
from tests.training.batches import tiny_estimator
from tests.training.test_wiring import DECAY, RATE, SEED, TRAINING, FirstBatch, by_group, make

SIZES = {"hidden_dim": 16, "dim": 12}
# What each discriminator sees, and the sign and weight of its bound in the encoders' loss, Eq. 11.
GAMMA, BETA1, BETA2 = 0.3, 0.2, 0.4
SEEN = {
    "text_in_image_invariant": ("text", "image_invariant", -GAMMA),
    "image_in_text_invariant": ("image", "text_invariant", -GAMMA),
    "image_in_image_exclusive": ("image", "image_exclusive", -(1 - GAMMA)),
    "text_in_text_exclusive": ("text", "text_exclusive", -(1 - GAMMA)),
    "text_in_image_exclusive": ("text", "image_exclusive", (1 - GAMMA) * (1 + BETA2)),
    "image_in_text_exclusive": ("image", "text_exclusive", (1 - GAMMA) * (1 + BETA2)),
    "image_overlap": ("image_invariant", "image_exclusive", 1.0),
    "text_overlap": ("text_invariant", "text_exclusive", 1.0),
}
CASES = {
    "information": {},
    "raw": {"discriminator_input": "raw"},
    "bounded": {"bounded_adversary": True},
    "reconstruction": {"disentangle": "reconstruction"},
    "none": {"disentangle": "none"},
    "alignment alone": {"disentangle": "none", "soften": False},
    "without L_reg": {"regularize": False},
}


def case_options(**changes):
    settings = {"gamma": GAMMA, "beta1": BETA1, "beta2": BETA2, **SIZES, **changes}
    return {"disncl": DisnclOptions(**{"warmup_epochs": 0, **settings})}


def passing(similarity):
    """In place of the filter, which hardly a pair of a random model passes: the better half."""
    own = similarity.diagonal()
    return own >= own.median()


@pytest.fixture(autouse=True)
def _filter(monkeypatch):
    monkeypatch.setattr(disncl, "mutual_match", passing)


def bound(joint, shuffled):
    return -F.softplus(-joint).mean() - F.softplus(shuffled).mean()


def direction(values):
    return math.sqrt(values.shape[1]) * F.normalize(values, dim=1)


class Problem:
    """A tiny model with the modules of an objective, and its embeddings of the first batch."""

    def __init__(self, options):
        self.settings = options["disncl"]
        self.estimator, self.batch = tiny_estimator(), FirstBatch().batch
        objective = make("disncl", options)
        torch.manual_seed(SEED)
        self.own = objective.modules(self.estimator.model)
        model = self.estimator.model.train()
        tokens = self.estimator.tokenize(self.batch.captions)
        tokens = tokens[:, : int(token_lengths(tokens).max())]
        image = model.encode_image(self.estimator.normalized(self.batch.pixels))
        text = encode_text(model, tokens, normalize=False)
        heads = self.own["heads"]
        self.parts = {
            "image": image, "text": text,
            "image_invariant": heads.image_invariant(image),
            "image_exclusive": heads.image_exclusive(image),
            "text_invariant": heads.text_invariant(text),
            "text_exclusive": heads.text_exclusive(text),
        }  # fmt: skip
        invariant = (
            F.normalize(self.parts[f"{side}_invariant"], dim=1) for side in ("image", "text")
        )
        image, text = invariant
        self.cosines = image @ text.T
        self.clean = passing(self.cosines)

    def seen(self, name):
        raw = self.settings.discriminator_input == "raw"
        values = self.parts[name][self.clean]
        return values if raw else direction(values)

    def step_discriminators(self):
        """Up the sum of all bounds, at ten times the rate, without decay."""
        judges = self.own["discriminators"].train()
        loss = -sum(
            bound(*judges[name](self.seen(first).detach(), self.seen(second).detach()))
            for name, (first, second, _) in SEEN.items()
        )
        loss.backward()
        with torch.no_grad():
            for parameter in judges.parameters():
                parameter -= 10 * RATE * parameter.grad / (parameter.grad.abs() + 1)
                parameter.grad = None
        judges.eval()

    def encoders_loss(self):
        settings, h, clean = self.settings, self.cosines, self.clean
        margin = 0.2 * (10 ** h.diagonal().detach().clamp(0, 1) - 1) / 9
        others = h - 1e4 * torch.eye(len(h))
        hinges = sum((margin - h.diagonal() + others.amax(dim)).relu() for dim in (0, 1))
        loss = hinges[clean].mean()
        if settings.soften:
            logits = h / 0.05
            for each, opposite in ((logits, logits.T), (logits.T, logits)):
                target = 0.5 * torch.eye(len(h)) + 0.5 * opposite.softmax(1).detach()
                loss = loss - (target * each.log_softmax(1)).sum(1)[clean].mean()
        if settings.disentangle == "reconstruction":
            for side in ("image", "text"):
                halves = [self.seen(f"{side}_invariant"), self.seen(f"{side}_exclusive")]
                wanted = self.seen(side).detach()
                wanted = wanted - wanted.mean(0)
                error = self.own["decoders"][side](torch.cat(halves, 1)) - wanted / wanted.std(
                    correction=0
                )
                loss = loss + error.square().mean()
        if settings.disentangle != "information":
            return loss
        for name, (first, second, weight) in SEEN.items():
            if name.endswith("overlap") and not settings.regularize:
                continue
            joint, shuffled = self.own["discriminators"][name](self.seen(first), self.seen(second))
            bounded = settings.bounded_adversary and weight > 0
            value = F.softplus(joint).mean() if bounded else bound(joint, shuffled)
            loss = loss + weight * value
        halves = [self.parts[f"{side}_invariant"][clean] for side in ("image", "text")]
        if settings.discriminator_input == "directions":
            halves = [F.normalize(half, dim=1) for half in halves]
        return loss + GAMMA * BETA1 * (halves[0] - halves[1]).square().sum(1).mean()


def warm_up_loss(problem):
    """The hinge of every negative, mean over all of them and both directions' sum."""
    h = problem.cosines
    own, off = h.diagonal(), ~torch.eye(len(h), dtype=torch.bool)
    return ((0.2 - own[:, None] + h).relu() + (0.2 - own + h).relu())[off].mean()


def stepped(problem, loss):
    """All parameters after a step: heads and decoders at the rate, towers at a twentieth."""
    loss.backward()
    rates = {"heads": 1.0, "decoders": 1.0, "image": 0.05, "text": 0.05}
    expected = {}
    with torch.no_grad():
        for name, (group, parameter) in by_group(problem.estimator, problem.own).items():
            rate = RATE * rates.get(group, 0.0)
            value = parameter.clone()
            if rate and parameter.grad is not None:
                decay = DECAY if parameter.ndim >= 2 else 0.0
                step = parameter.grad / (parameter.grad.abs() + 1)
                value = value - rate * decay * value - rate * step
            expected[name] = value
    return expected


def assert_trained_to(expected, options):
    estimator, objective = tiny_estimator(), make("disncl", options)
    objective.phases = objective.phases[:1]
    trainer = Trainer(estimator, objective, FirstBatch(), TRAINING, None)
    trainer.run()
    found = by_group(estimator, trainer.own)
    assert found.keys() == expected.keys()
    for name, (_, parameter) in found.items():
        assert torch.allclose(parameter, expected[name], atol=1e-4), name


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_phase_two_is_the_formula(case):
    options = case_options(**CASES[case])
    problem = Problem(options)
    if "discriminators" in problem.own:
        problem.step_discriminators()
    assert_trained_to(stepped(problem, problem.encoders_loss()), options)


def test_a_step_of_phase_one_is_the_formula():
    options = case_options(warmup_epochs=1)
    problem = Problem(options)
    assert_trained_to(stepped(problem, warm_up_loss(problem)), options)
