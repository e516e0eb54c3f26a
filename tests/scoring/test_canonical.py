"""Canonical correlation analysis against its formula, and what it finds."""

import numpy as np
import pytest
from scipy.linalg import sqrtm
from sklearn.metrics import roc_auc_score

from ncclean.scoring.canonical import Moments, Projection, halves


def corpus(pairs, seed=0, wrong=0.2):
    """Images and captions that share 4 of 12 directions; the others are loud and mean nothing."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(pairs, 4))
    moved = rng.random(pairs) < wrong
    said = np.where(moved[:, None], rng.normal(size=(pairs, 4)), shared)
    sides = []
    for content in (shared, said):
        loud = 3 * rng.normal(size=(pairs, 8)) + 1
        side = np.hstack([content + 0.5 * rng.normal(size=(pairs, 4)), loud])
        sides.append((side / np.linalg.norm(side, axis=1, keepdims=True)).astype(np.float32))
    return *sides, moved


def fitted(image, text, seed=0):
    moments = Moments(image.shape[1])
    rng = np.random.default_rng(seed)
    for at in range(0, len(image), 700):  # as shards add up
        moments.add(image[at : at + 700], text[at : at + 700], rng)
    return Projection.fit(moments)


def test_the_cosines_are_those_of_the_formula():
    image, text, _ = corpus(5000)
    v, t = image[:3000].astype(np.float64), text[:3000].astype(np.float64)
    means = v.mean(0), t.mean(0)
    roots = []
    for side in (v, t):
        covariance = np.cov(side.T, bias=True)
        ridge = 1e-3 * np.trace(covariance) / 12
        roots.append(np.linalg.inv(np.real(sqrtm(covariance + ridge * np.eye(12)))))
    both = (v - means[0]).T @ (t - means[1]) / len(v)
    left, strength, right = np.linalg.svd(roots[0] @ both @ roots[1])
    projection = fitted(image[:3000], text[:3000])
    kept = projection.image_basis.shape[1]
    assert kept == 4
    x = (image[3000:] - means[0]) @ roots[0] @ left[:, :kept] * strength[:kept]
    y = (text[3000:] - means[1]) @ roots[1] @ right.T[:, :kept] * strength[:kept]
    expected = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    assert projection.cosines(image[3000:], text[3000:]) == pytest.approx(expected, abs=1e-4)


def test_it_sees_through_what_means_nothing():
    image, text, moved = corpus(6000)
    projection = fitted(image[:3000], text[:3000])
    found = projection.cosines(image[3000:], text[3000:])
    plain = (image * text).sum(1)[3000:]
    assert roc_auc_score(~moved[3000:], found) > 0.88
    assert roc_auc_score(~moved[3000:], plain) < 0.75


def test_nothing_in_common_and_too_few_pairs():
    rng = np.random.default_rng(0)
    image, text = (rng.normal(size=(200, 12)).astype(np.float32) for _ in range(2))
    assert fitted(image[:119], text[:119]) is None
    found = fitted(image, text).cosines(image, text)
    assert np.isfinite(found).all()


def test_halves_are_halves_and_always_the_same():
    rows = np.arange(4000)
    first = halves(["00000"] * 4000, rows)
    assert 0.45 < first.mean() < 0.55
    assert np.array_equal(halves(["00000"] * 100, rows[:100]), first[:100])
    assert not np.array_equal(halves(["00001"] * 100, rows[:100]), first[:100])
