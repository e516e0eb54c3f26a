import numpy as np
import pytest
import torch

from ncclean.scoring.near_miss import (
    Exchanges,
    ExpectedSimilarity,
    NearMisses,
    counted_share,
    margin_after,
    may_be_told_apart,
)
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions


def corpus(pairs=60, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randn(pairs, dim, generator=generator).double()
    noise = torch.randn(pairs, generator=generator).double()
    return text, 0.3 + 0.1 * text[:, 0] + 0.02 * noise


def test_a_pair_is_left_out_of_its_own_fit():
    """The residual is that of a ridge regression without the pair, at the penalty of all."""
    text, similarity = corpus()
    fit = ExpectedSimilarity.fit(text, similarity)
    others = torch.arange(len(text)) != 7
    centred = text - text.mean(dim=0)
    # The mean is a feature without a penalty; the others are penalised around the mean of all.
    design = torch.cat([centred, torch.ones(len(text), 1)], dim=1).double()
    losses = []
    unit = torch.linalg.eigvalsh(centred.T @ centred).mean()
    for ridge in 10.0 ** np.arange(-3, 4):
        penalty = torch.diag(torch.tensor([ridge * unit] * text.shape[1] + [0.0])).double()
        kept = design[others]
        weights = torch.linalg.solve(kept.T @ kept + penalty, kept.T @ similarity[others])
        losses.append(float(similarity[7] - design[7] @ weights))
    assert min(abs(loss - float(fit.residual[7])) for loss in losses) < 1e-9
    assert fit.residual.square().mean() < similarity.var() / 10


def test_another_caption_of_the_pair_is_judged_without_it_too():
    text, similarity = corpus()
    fit = ExpectedSimilarity.fit(text, similarity)
    rows = torch.tensor([3, 11])
    again = fit.residual_of(text[rows], similarity[rows], rows)
    assert torch.allclose(again, fit.residual[rows])


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_next_to_no_pairs(pairs):
    fit = ExpectedSimilarity.fit(*corpus(pairs))
    assert torch.isfinite(fit.residual).all()


EXCHANGES = Exchanges(np.array([0, 0, 9, 9]), np.array([0.1, -0.2, 0.3, -0.4]))


def test_the_best_exchanges_come_first():
    assert EXCHANGES.best(3).tolist() == [2, 0, 1]


def test_the_way_back_undoes_the_exchange():
    after, numbers, undone = EXCHANGES.after(1)
    assert numbers.tolist() == [0, 2, 3, -1]
    assert undone.tolist() == [True, False, False, True]
    assert np.allclose(after.gains, [0.3, 0.3, -0.4, 0.2])


def test_margin_of_a_known_near_miss():
    """Of caption 1: the way back has the caption's own cosine, other words change as before."""
    tried, cosines = np.array([2, 0]), np.array([0.24, 0.33])
    margin = margin_after(EXCHANGES, 1, tried, cosines, 0.30, 0.20, 4)
    assert margin == pytest.approx(0.20 - max(0.30, 0.33, 0.24 - 0.10))
    # The two best are exchange 0, and 2 with what the draw changed.
    margin = margin_after(EXCHANGES, 1, tried, cosines, 0.30, 0.20, 2)
    assert margin == pytest.approx(0.20 - 0.33)
    assert margin_after(EXCHANGES, 1, np.array([3]), np.array([0.1]), 0.3, 0.2, 1) is None


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
def test_the_rate_counts_near_misses_that_no_longer_look_matched(share):
    generator = np.random.default_rng(0)
    right, wrong = (generator.normal(mean, 0.05, 40_000) for mean in (0.1, -0.1))
    seen = int(20_000 * share / 2)  # half of the near misses are left
    pairs = np.concatenate([right[: int(20_000 * (1 - share))], wrong[:seen]])
    scores = Distributions(
        matched=Histogram.of(torch.from_numpy(pairs)),
        mismatched=Histogram.of(torch.from_numpy(wrong[20_000 : 20_000 + len(pairs) // 2])),
    )
    found = NearMisses.fit(scores).rate
    assert found.low - 0.01 <= share <= found.high + 0.01
    assert found.value == pytest.approx(share, abs=0.02)


def test_the_few_that_look_matched_do_not_stand_for_all():
    generator = np.random.default_rng(0)
    others = generator.normal(0.0, 0.05, 10_000)
    # One caption in ten fits any image, so known mismatches reach the cosines of matched pairs.
    fits = generator.random(10_000) < 0.1
    known = np.where(fits, generator.normal(0.5, 0.05, 10_000), others)
    pairs = generator.normal(0.5, 0.05, 10_000)

    def cosines(mismatched: np.ndarray) -> Distributions:
        return Distributions(
            matched=Histogram.of(torch.from_numpy(pairs)),
            mismatched=Histogram.of(torch.from_numpy(mismatched)),
        )

    assert counted_share(cosines(others), 0.0) == 1.0
    assert counted_share(cosines(known), 0.0) < 0.2
    assert counted_share(Distributions(), 0.0) == 0.0
    scores = cosines(others)
    assert not NearMisses.fit(scores, 0.9).cannot_tell
    assert NearMisses.fit(scores, 0.2).cannot_tell


def test_too_few_tell_nothing():
    assert NearMisses.fit(Distributions()) is None


@pytest.mark.parametrize(
    ("told", "captions", "kept"), [(2.0, 400, True), (0.0, 400, False), (0.0, 15, True)]
)
def test_a_class_is_kept_if_images_tell_its_words_apart(told, captions, kept):
    """Unless there are too few captions to say so."""
    rng = np.random.default_rng(0)
    word = rng.integers(3, size=captions)
    fit = rng.normal(size=(captions, 3)) + told * (word[:, None] == np.arange(3))
    assert may_be_told_apart(fit, word, np.arange(3)) == kept


def test_synonyms_say_nothing_about_a_class():
    fit, word = np.eye(2)[[0, 1] * 50], np.array([0, 1] * 50)
    assert may_be_told_apart(fit, word, np.array([0, 1]))
    assert not may_be_told_apart(fit, word, np.array([0, 0]))


def test_one_word_alone_is_not_told_apart():
    """No caption has another of its class: nothing says that an exchange would be seen."""
    assert not may_be_told_apart(np.ones((50, 1)), np.zeros(50, np.int64), np.zeros(1, np.int64))
