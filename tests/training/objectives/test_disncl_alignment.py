import math

import pytest
import torch

from ncclean.training.objectives.disncl_losses import (
    all_negatives_loss,
    ranking_loss,
    soft_alignment_loss,
    soft_margin,
)

H = torch.tensor([[1.0, 0.0], [0.5, 1.0]])
FIRST = torch.tensor([True, False])


def log_softmax(*values: float) -> list[float]:
    total = math.log(sum(map(math.exp, values)))
    return [value - total for value in values]


def test_soft_margin_by_hand():
    found = soft_margin(torch.tensor([1.0, 0.5, 0.3, 0.0, -0.4, 1.2], requires_grad=True))
    expected = [0.2, 0.04805, 0.02212, 0.0, 0.0, 0.2]
    assert found.tolist() == pytest.approx(expected, abs=5e-6)
    assert not found.requires_grad


def test_ranking_loss_by_hand():
    """Hardest negatives: rows .4, .7, .6; columns .7, .6, .3. Pair 2's margin is its own, .1."""
    similarity = torch.tensor([[0.9, 0.4, 0.3], [0.7, 0.5, 0.2], [0.1, 0.6, 0.55]])
    margin = torch.tensor([0.3, 0.2, 0.1])
    first = 0.3 - 0.9 + 0.7  # the row is satisfied: .3 - .9 + .4 < 0
    third = 0.1 - 0.55 + 0.6
    clean = torch.tensor([True, False, True])
    assert ranking_loss(similarity, clean, margin).item() == pytest.approx((first + third) / 2)
    second = (0.2 - 0.5 + 0.7) + (0.2 - 0.5 + 0.6)
    everyone = torch.ones(3, dtype=torch.bool)
    assert ranking_loss(similarity, everyone, margin).item() == pytest.approx(
        (first + second + third) / 3
    )


def test_all_negatives_by_hand():
    """Margin .6: rows [.6 - 1 + 0]+ and [.6 - 1 + .5]+, the columns the same; 4 terms, 2 pairs."""
    assert all_negatives_loss(H, 0.6).item() == pytest.approx((0.1 + 0.1) / 2)
    assert all_negatives_loss(torch.ones(1, 1), 0.6) == 0


def test_soft_alignment_by_hand():
    """Pair 0: image to text .50203; text to image with p = softmax(1, .5) and its target."""
    i2t, t2i = log_softmax(1.0, 0.0), log_softmax(1.0, 0.5)

    def direction(log_p, opposite, swap=False):
        target = [0.5 * (j == 0) + 0.5 * math.exp(opposite[j]) for j in range(2)]
        if swap:
            return -sum(math.exp(p) * math.log(y) for p, y in zip(log_p, target, strict=True))
        return -sum(y * p for p, y in zip(log_p, target, strict=True))

    assert direction(i2t, t2i) == pytest.approx(0.50203, abs=5e-6)
    assert direction(i2t, t2i, swap=True) == pytest.approx(0.60133, abs=1e-4)
    loss = soft_alignment_loss(H, FIRST, temperature=1.0)
    assert loss.item() == pytest.approx(direction(i2t, t2i) + direction(t2i, i2t), abs=1e-6)
    loss = soft_alignment_loss(H, FIRST, temperature=1.0, reverse=True)
    expected = direction(i2t, t2i, swap=True) + direction(t2i, i2t, swap=True)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_beta3_of_one_is_cross_entropy_and_noisy_candidates_can_be_masked():
    target = torch.arange(2)
    both = torch.nn.functional.cross_entropy(H, target) + torch.nn.functional.cross_entropy(
        H.T, target
    )
    everyone = torch.ones(2, dtype=torch.bool)
    assert torch.allclose(soft_alignment_loss(H, everyone, temperature=1.0, beta3=1.0), both)
    # Pair 1 is the only other candidate of pair 0.
    assert soft_alignment_loss(H, FIRST, mask_noisy=True).item() == pytest.approx(0, abs=1e-6)
    assert soft_alignment_loss(H, FIRST).item() > 1e-6


def test_targets_are_detached():
    """The gradient of -sum y log p with y held: (p - y) / temperature for each direction."""
    similarity = H.clone().double().requires_grad_()
    (gradient,) = torch.autograd.grad(
        soft_alignment_loss(similarity, FIRST, temperature=1.0), similarity
    )
    i2t, t2i = similarity.detach().softmax(dim=1)[0], similarity.detach().T.softmax(dim=1)[0]
    onehot = torch.tensor([1.0, 0.0], dtype=torch.float64)
    expected = torch.zeros(2, 2, dtype=torch.float64)
    expected[0] += i2t - (onehot + t2i) / 2
    expected[:, 0] += t2i - (onehot + i2t) / 2
    assert torch.allclose(gradient, expected)


LOSSES = {
    "ranking": lambda h, clean: ranking_loss(h, clean, soft_margin(h.diagonal())),
    "soft": soft_alignment_loss,
    "reverse": lambda h, clean: soft_alignment_loss(h, clean, reverse=True),
    "masked": lambda h, clean: soft_alignment_loss(h, clean, mask_noisy=True),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_no_clean_pair_gives_an_attached_zero(loss):
    similarity = torch.rand(4, 4, requires_grad=True)
    found = loss(similarity, torch.zeros(4, dtype=torch.bool))
    found.backward()
    assert found == 0
    assert (similarity.grad == 0).all()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_extremes_stay_finite(loss):
    similarity = torch.ones(4, 4) - 2 * torch.eye(4)
    similarity.requires_grad_()
    for clean in (torch.ones(4, dtype=torch.bool), torch.arange(4) < 1):
        found = loss(similarity, clean)
        (gradient,) = torch.autograd.grad(found, similarity)
        assert torch.isfinite(found)
        assert torch.isfinite(gradient).all()
    assert torch.isfinite(loss(torch.ones(1, 1), torch.ones(1, dtype=torch.bool)))


def test_smooth_where_it_should_be():
    """Targets and margins are held, so the function checked holds them too."""
    similarity = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    clean = torch.tensor([True, False, True, True])
    assert torch.autograd.gradcheck(
        lambda h: ranking_loss(h, clean, torch.full((4,), 0.3, dtype=torch.float64)), (similarity,)
    )
    for masked in (False, True):  # with beta3 1 the target is constant
        assert torch.autograd.gradcheck(
            lambda h, masked=masked: soft_alignment_loss(h, clean, 0.2, 1.0, mask_noisy=masked),
            (similarity,),
        )
