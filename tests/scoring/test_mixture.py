import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from ncclean.scoring.clip_loss import neg_clip_loss
from ncclean.scoring.mixture import LossMixture, loss_histogram, pair_losses
from ncclean.scoring.null import Histogram


def posterior_of(losses):
    """The posterior under a mixture fitted to the losses themselves."""
    return LossMixture.fit(losses).clean_posterior(losses)


def two_modes(pairs: int = 20_000, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Losses of which 30 % belong to noisy pairs, and which do."""
    rng = np.random.default_rng(seed)
    noisy = rng.random(pairs) < 0.3
    losses = np.where(noisy, rng.normal(6.0, 1.5, pairs), rng.gamma(1.5, 0.4, pairs))
    return torch.from_numpy(np.maximum(losses, 0.0)), noisy


def test_posterior_is_scikit_learns():
    losses, _ = two_modes(3000)
    values = losses.numpy().reshape(-1, 1)
    mixture = GaussianMixture(2, max_iter=100, tol=1e-2, reg_covar=5e-4, random_state=0).fit(values)
    expected = mixture.predict_proba(values)[:, mixture.means_.argmin()]
    assert np.abs(posterior_of(losses).numpy() - expected).max() < 1e-5


def test_finds_the_noisy_pairs():
    losses, noisy = two_modes()
    posterior = posterior_of(losses).numpy()
    assert ((posterior < 0.5) == noisy).mean() > 0.98
    assert posterior.min() >= 0
    assert posterior.max() <= 1


def test_a_histogram_gives_the_mixture_of_its_losses():
    losses, _ = two_modes(200_000)
    exact, binned = LossMixture.fit(losses), LossMixture.fit_histogram(loss_histogram(losses))
    assert binned.means == pytest.approx(exact.means, rel=0.01)
    assert binned.variances == pytest.approx(exact.variances, rel=0.02)
    difference = exact.clean_posterior(losses) - binned.clean_posterior(losses)
    assert difference.abs().max() < 0.02


def test_histograms_add_up_in_any_order():
    parts = [loss_histogram(two_modes(500, seed)[0]) for seed in range(5)]
    forward, backward = Histogram(), Histogram()
    for one, other in zip(parts, reversed(parts), strict=True):
        forward += one
        backward += other
    assert (forward.counts == backward.counts).all()
    assert forward.units == backward.units
    assert forward.size == 2500


def test_loss_is_the_cross_entropy_of_the_pair():
    torch.manual_seed(0)
    cosines = torch.rand(16, 16) * 2 - 1
    logits, target = 30 * cosines, torch.arange(16)
    both = [torch.nn.functional.cross_entropy(x, target, reduction="none") for x in
            (logits, logits.T)]  # fmt: skip
    losses = pair_losses(neg_clip_loss(cosines, 30.0), 30.0)
    assert torch.allclose(losses, sum(both) / 2, atol=1e-4)


@pytest.mark.parametrize("losses", [[], [1.0], [1.0, float("nan")]])
def test_too_few_or_broken_losses_are_refused(losses: list[float]):
    with pytest.raises(ValueError, match="two losses"):
        posterior_of(torch.tensor(losses))


def test_equal_losses_do_not_break_the_fit():
    posterior = posterior_of(torch.zeros(10))
    assert torch.isfinite(posterior).all()


def test_losses_may_belong_to_a_graph():
    losses, _ = two_modes(300)
    tracked = losses.clone().requires_grad_()
    posterior = posterior_of(tracked)
    assert not posterior.requires_grad
    assert torch.equal(posterior, posterior_of(losses))
