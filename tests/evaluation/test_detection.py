"""Detection metrics by hand, and as scikit-learn and scipy have them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, roc_auc_score

from ncclean.evaluation.detection import SortedScores, optimal_noise_rank, report_on


def curve(values, truth):
    return SortedScores.of(
        np.asarray(values, dtype=float), np.asarray(truth, dtype=np.int8)
    ).curve()


def test_by_hand():
    detection = curve([0.9, 0.8, 0.4, 0.4, 0.1], [1, 0, 1, 0, 0])
    assert detection.thresholds.tolist() == [0.9, 0.8, 0.4, 0.1]
    assert detection.caught.tolist() == [1, 1, 2, 2]
    assert detection.alarms.tolist() == [0, 1, 2, 3]
    assert detection.at(0.8) == (1, 1)
    assert detection.at(0.81) == (1, 0)
    assert detection.at(2.0) == (0, 0)
    assert detection.at(-1.0) == (2, 3)
    assert detection.auroc == pytest.approx((3 + 1.5) / 6)
    assert detection.average_precision == pytest.approx(0.5 * 1 + 0.5 * 0.5)
    assert detection.best_f1() == (0.9, pytest.approx(2 / 3))


# Few distinct values, so that ties are common.
pairs = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=60)


@given(pairs)
def test_agrees_with_sklearn_and_scipy(drawn):
    values, truth = (np.array(column) for column in zip(*drawn, strict=True))
    detection = curve(values, truth)
    if truth.any():
        assert detection.average_precision == pytest.approx(average_precision_score(truth, values))
        assert detection.mean_noise_rank == pytest.approx(rankdata(values)[truth].mean())
    if truth.any() and not truth.all():
        assert detection.auroc == pytest.approx(roc_auc_score(truth, values))
    for threshold in (-1, 0, 0.5):
        flagged = values >= threshold
        assert detection.at(threshold) == ((flagged & truth).sum(), (flagged & ~truth).sum())


@given(pairs, st.randoms(use_true_random=False))
def test_order_does_not_matter(drawn, random):
    shuffled = list(drawn)
    random.shuffle(shuffled)
    one, other = (curve(*zip(*each, strict=True)) for each in (drawn, shuffled))
    assert one.caught.tolist() == other.caught.tolist()
    assert one.alarms.tolist() == other.alarms.tolist()


def test_one_kind_against_clean_pairs():
    scores = SortedScores.of(np.array([3.0, 2.0, 1.0, 0.0]), np.array([1, 0, 2, 0], dtype=np.int8))
    assert scores.curve(1).auroc == 1
    assert scores.curve(2).auroc == 0.5
    assert scores.curve().auroc == 0.75


def test_nothing_at_all():
    empty = curve([], [])
    assert np.isnan(empty.auroc)
    assert empty.at(0.0) == (0, 0)
    assert all(len(axis) == 0 for axis in empty.points())


@given(pairs)
def test_points_start_at_nothing_and_end_at_everything(drawn):
    values, truth = zip(*drawn, strict=True)
    if len(set(truth)) < 2:
        return
    alarms, recall, precision = curve(values, truth).points(10)
    assert (alarms[0], recall[0]) == (0, 0)
    assert (alarms[-1], recall[-1]) == (1, 1)
    assert (np.diff(alarms) >= 0).all()
    assert (np.diff(recall) >= 0).all()
    assert precision[-1] == pytest.approx(np.mean(truth))


def test_report_by_hand():
    report = report_on(curve([0.9, 0.8, 0.4, 0.1], [True, False, True, False]), 0.5)
    assert report.accuracy == report.precision == report.recall == report.f1 == 0.5
    assert report.auroc == 0.75
    assert report.average_precision == pytest.approx((1 + 2 / 3) / 2)
    assert report.clean_kept == report.noise_caught == 0.5


def test_perfect_and_at_the_threshold():
    report = report_on(curve([0.5, 0.2], [True, False]), 0.5)
    assert report.auroc == report.accuracy == report.f1 == 1


def test_only_clean_pairs():
    report = report_on(curve([0.1, 0.6], [False, False]), 0.5)
    assert report.accuracy == report.clean_kept == 0.5
    assert math.isnan(report.recall)
    assert math.isnan(report.auroc)


def test_mean_noise_rank_by_hand():
    assert curve([-0.9, -0.1, -0.5, 0.0], [0, 1, 0, 1]).mean_noise_rank == 3.5
    assert curve([0.0, 0.0, -1.0], [1, 0, 0]).mean_noise_rank == 2.5


@pytest.mark.parametrize(("noisy", "expected"), [(370, 1815.5), (953, 1524.0)])
def test_optimum_of_the_paper(noisy, expected):
    truth = np.arange(2000) < noisy
    assert curve(np.where(truth, 0, -1 - np.arange(2000)), truth).mean_noise_rank == expected
    assert optimal_noise_rank(2000, noisy) == expected
