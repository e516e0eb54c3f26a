"""What the optimiser does with a gradient: rates along the schedule, decay, and the scale."""

from __future__ import annotations

import math

import pytest
import torch

from ncclean.training.objectives.base import Phase
from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
from ncclean.training.objectives.registry import make_objective
from ncclean.training.optimizers import make_optimizer, parameter_groups, set_learning_rates
from ncclean.training.trainer import Trainer
from tests.training.batches import FixedBatches, tiny_estimator
from tests.training.test_wiring import TRAINING, FirstBatch


def test_the_rate_rises_and_falls_along_a_cosine():
    """10 steps, 30 % of them warm-up: thirds, then half a cosine from 1 to just above 0."""
    rates_of = {"text": 2.0, "image": 0.5}
    phase = Phase(name="p", epochs=1, learning_rates=rates_of, warmup=0.3)
    groups = parameter_groups(tiny_estimator().model, {})
    optimizer = make_optimizer(groups, phase)
    rates = []
    for step in range(10):
        set_learning_rates(optimizer, phase.rate(step, 0, 10, 10))
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
