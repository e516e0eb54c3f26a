import math

import pytest
import torch
import torch.nn.functional as F

from ncclean.training.objectives.disncl_losses import (
    PAIRS,
    Discriminator,
    Discriminators,
    adversarial_bound,
    jsd_bound,
)


def test_bound_by_hand():
    zero = torch.zeros(5)
    assert jsd_bound(zero, zero).item() == pytest.approx(-1.38629, abs=5e-6)
    found = jsd_bound(torch.tensor([1.0, 3.0]), torch.tensor([-2.0]))
    expected = -(math.log1p(math.exp(-1)) + math.log1p(math.exp(-3))) / 2 - math.log1p(math.exp(-2))
    assert found.item() == pytest.approx(expected, abs=1e-6)
    none = torch.zeros(0, requires_grad=True)
    assert jsd_bound(none, none) == 0
    assert jsd_bound(none, none).requires_grad


def test_what_the_encoder_sees_of_an_adversary():
    joint, shuffled = torch.tensor([-400.0]), torch.tensor([0.0])
    assert adversarial_bound(joint, shuffled, bounded=False).item() == pytest.approx(
        -400 - math.log(2)
    )
    assert adversarial_bound(joint, shuffled, bounded=True) == 0
    assert adversarial_bound(torch.tensor([2.0]), shuffled, True).item() == pytest.approx(
        math.log1p(math.exp(2))
    )


def test_smooth_and_finite():
    joint, shuffled = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(jsd_bound, (joint, shuffled))
    assert torch.isfinite(jsd_bound(torch.tensor([-1e4, 1e4]), torch.tensor([1e4, -1e4])))


def test_rolled_first_layer_is_the_whole_one_on_rolled_pairs():
    torch.manual_seed(0)
    discriminator = Discriminator(3, 4).eval()
    first, second = torch.randn(6, 3), torch.randn(6, 4)

    def plainly(a, b):
        hidden = F.leaky_relu(discriminator.input(torch.cat([a, b], dim=1)), 0.2)
        return discriminator.output(F.leaky_relu(discriminator.hidden(hidden), 0.2))[:, 0]

    joint, shuffled = discriminator(first, second)
    assert torch.allclose(joint, plainly(first, second), atol=1e-6)
    assert torch.allclose(shuffled, plainly(first, second.roll(1, dims=0)), atol=1e-6)


def test_a_discriminator_tells_dependence_from_independence():
    """The bound rises well above -2 ln 2 on dependent pairs, and not on independent ones."""
    bounds = []
    for dependent in (True, False):
        torch.manual_seed(0)
        discriminator = Discriminator(4, 4, 32)
        optimizer = torch.optim.Adam(discriminator.parameters(), 3e-3)
        for _ in range(150):
            first = torch.randn(256, 4)
            second = first + 0.2 * torch.randn(256, 4) if dependent else torch.randn(256, 4)
            bound = jsd_bound(*discriminator(first, second))
            optimizer.zero_grad()
            (-bound).backward()
            optimizer.step()
        bounds.append(bound.item())
    assert bounds[0] > -1.0
    assert bounds[1] == pytest.approx(-2 * math.log(2), abs=0.05)


def test_eight_separate_ones_that_see_directions_only():
    discriminators = Discriminators(5, 7, 16).eval()
    assert len(discriminators) == 8
    assert len({id(p) for p in discriminators.parameters()}) == 8 * 6
    generator = torch.Generator().manual_seed(0)
    widths = {"image": 5, "text": 5}
    parts = {
        name: torch.randn(3, widths.get(name, 7), generator=generator)
        for name in {part for pair in PAIRS.values() for part in pair}
    }
    longer = {name: 100 * part for name, part in parts.items()}
    for name in PAIRS:
        for a, b in zip(
            discriminators.logits(name, parts), discriminators.logits(name, longer), strict=True
        ):
            assert torch.allclose(a, b, atol=1e-5)
