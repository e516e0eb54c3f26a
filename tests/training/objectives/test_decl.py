import math

import pytest
import torch

from ncclean.training.objectives.decl import draw_log_u, loss_of_sums
from tests.training.objectives.samples import extremes


def log_sum(logits):
    return logits.logsumexp(dim=1)


def loss_of(logits, log_u):
    return loss_of_sums(logits.diagonal(), log_sum(logits), log_u)


def test_draws_have_the_rate_of_the_sum():
    logits = torch.tensor([[2.0, 3.0]]).log().repeat(40_000, 1)
    u = draw_log_u(log_sum(logits), generator=torch.Generator().manual_seed(0)).exp()
    assert u.mean().item() == pytest.approx(0.2, abs=4 * 0.2 / 200)
    assert u.var().item() == pytest.approx(0.04, rel=0.05)


def test_memory_and_its_bound():
    logits = torch.zeros(3, 2)
    remembered = torch.tensor([float("nan"), math.log(0.5), 90.0])
    drawn = draw_log_u(log_sum(logits), generator=torch.Generator().manual_seed(1)).exp()
    kept = draw_log_u(
        log_sum(logits), remembered, moving_average=0.75, generator=torch.Generator().manual_seed(1)
    ).exp()
    assert torch.allclose(kept[0], drawn[0])
    assert torch.allclose(kept[1], 0.75 * 0.5 + 0.25 * drawn[1])
    assert kept[2].item() == pytest.approx(25)  # u sum_j s_ij is at most 50


def test_smooth_and_finite():
    logits = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    log_u = draw_log_u(log_sum(logits.detach())).double()
    assert torch.autograd.gradcheck(lambda x: loss_of(x, log_u), (logits,))
    image, text = extremes(2)
    logits = 100 * image @ text.T
    stale = torch.full((4,), 200.0)
    loss = loss_of(logits, draw_log_u(log_sum(logits.detach()), stale))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(image.grad).all()
