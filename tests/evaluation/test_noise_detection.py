import math

import numpy as np
import pytest

from ncclean.errors import InputError
from ncclean.evaluation.noise_detection import detection_report, mean_noise_rank


def test_report_by_hand():
    report = detection_report([0.9, 0.8, 0.4, 0.1], [True, False, True, False], threshold=0.5)
    assert report.accuracy == report.precision == report.recall == report.f1 == 0.5
    assert report.auroc == 0.75
    assert report.average_precision == pytest.approx((1 + 2 / 3) / 2)
    assert report.clean_kept == report.noise_caught == 0.5


def test_perfect_and_at_the_threshold():
    report = detection_report([0.5, 0.2], [True, False], threshold=0.5)
    assert report.auroc == report.accuracy == report.f1 == 1


def test_only_clean_pairs():
    report = detection_report([0.1, 0.6], [False, False], threshold=0.5)
    assert report.accuracy == report.clean_kept == 0.5
    assert math.isnan(report.recall)
    assert math.isnan(report.auroc)


def test_mean_noise_rank_by_hand():
    assert mean_noise_rank([0.9, 0.1, 0.5, 0.0], [False, True, False, True]) == 3.5
    assert mean_noise_rank([0.0, 0.0, 1.0], [True, False, False]) == 2.5


@pytest.mark.parametrize(("noisy", "expected"), [(370, 1815.5), (953, 1524.0)])
def test_optimum_of_the_paper(noisy, expected):
    truth = np.arange(2000) < noisy
    assert mean_noise_rank(np.where(truth, 0.0, 1 + np.arange(2000)), truth) == expected


def test_lengths_and_nans_are_refused():
    with pytest.raises(InputError, match="the same length"):
        detection_report([0.1], [True, False], 0.5)
    with pytest.raises(InputError, match="NaN"):
        mean_noise_rank([float("nan")], [True])
