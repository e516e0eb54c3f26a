"""The score to calibrate on, where wrong captions are of the corpus and where they are not."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from ncclean.base.estimates import Estimate
from ncclean.scoring.clip_loss import neg_clip_loss
from ncclean.scoring.columns import score_pairs
from ncclean.scoring.mixture import LossMixture, loss_histogram, pair_losses
from ncclean.scoring.null import Histogram, NullModel
from ncclean.scoring.score_choice import better_score, excess_below
from ncclean.scoring.stats import Distributions


def histogram(values):
    return Histogram.of(torch.tensor(values))


def distributions(matched):
    mismatched = np.linspace(-0.5, 0.5, 1001)
    return Distributions(matched=histogram(matched), mismatched=histogram(mismatched))


def test_excess_by_hand():
    """The quantiles of the known mismatches go from -.45 to 0."""
    cosine = distributions([-0.39] * 4 + [0.2] * 20)
    other = distributions([-0.39] * 11 + [0.2] * 13)
    # Below -.45 and -.4 lie none, below the eight others 4 and 11.
    assert excess_below(cosine, other) == pytest.approx(0.8 * (11 - 4) / (4 + 11 + 1) ** 0.5)
    assert excess_below(other, cosine) == pytest.approx(-0.8 * 7 / 4)
    assert excess_below(cosine, cosine) == 0


def null(overlap=0.1, low=0.1, high=0.3):
    nothing = np.zeros(4096)
    return NullModel(Estimate(0.2, low, high), 0.9, 0.1, overlap, nothing, nothing)


@pytest.mark.parametrize(
    ("excess", "gain", "rates", "expected"),
    [
        (0, 2.9, {}, "similarity"),
        (0, 3.1, {}, "neg_clip_loss"),  # expected to be wrong on three pairs fewer
        (7, -5, {}, "neg_clip_loss"),  # own images among the rivals
        (2, -5, {}, "similarity"),
        (7, 5, {"noise_rate": Estimate(0.45, 0.4, 0.5)}, "similarity"),
    ],
)
def test_which_score_is_taken(excess, gain, rates, expected):
    both = distributions([-0.39] * 4 + [0.2] * 96)
    both.scores["neg_clip_loss"] = distributions([-0.39] * (4 + excess) + [0.2] * (96 - excess))
    assert both.matched.size == 100
    other = dataclasses.replace(null(0.1 - gain / 100), **rates)
    assert better_score(both, null(), other) == expected


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_own_images_among_the_rivals_are_seen(share):
    """Pairs that a strong model tells apart: wrong captions of each other, or from elsewhere."""
    rng = np.random.default_rng(round(100 * share))
    common = rng.normal(size=(2_000, 64))
    image, text = (common + 0.4 * rng.normal(size=common.shape) for _ in range(2))
    image, text = (
        torch.from_numpy(side / np.linalg.norm(side, axis=1, keepdims=True)).float()
        for side in (image, text)
    )
    count = round(share * 1_000)
    excess = {}
    for kind in ("of the corpus", "from elsewhere"):
        captions = text[:1_000].clone()
        captions[:count] = text[:count].roll(1, 0) if kind == "of the corpus" else text[-count:]
        found = score_pairs(
            image[:1_000], captions, scale=100.0, shard="0", block_size=2048,
            forget_percent=10.0, seed=0,
        ).distributions  # fmt: skip
        excess[kind] = excess_below(found, found.score("neg_clip_loss"))
    assert excess["of the corpus"] > 1
    assert abs(excess["from elsewhere"]) < 0.5


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


@pytest.mark.parametrize("loss", [0.0, 1e-6, 3.0])
def test_equal_losses_call_no_pair_clean_or_noisy(loss):
    losses = torch.full((500,), loss)
    mixture = LossMixture.fit_histogram(loss_histogram(losses))
    assert mixture.clean_posterior(losses).tolist() == [0.5] * 500


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
