import math

import numpy as np
import pytest

from beliefs.compared import compare_beliefs


def test_comparison_by_hand():
    beliefs = {
        "right": np.array([4.0, 3.0, 2.0, 1.0, 9.0]),
        "wrong": np.array([1.0, 2.0, 3.0, 4.0, 9.0]),
        "constant": np.ones(5),
        "partial": np.array([1.0, math.nan, math.nan, 0.0, math.nan]),
    }
    report = compare_beliefs(beliefs, np.array([0, 0, 1, 1, -1]))
    assert (report.pairs, report.noisy) == (5, 2)
    right, wrong, constant, partial = report.beliefs
    assert (right.auroc, wrong.auroc, constant.auroc, partial.auroc) == (1, 0, 0.5, 1)
    assert (right.clean_mean, right.noisy_mean) == (3.5, 1.5)
    assert report.correlation["right"]["right"] == pytest.approx(1)
    # Ranks 4 3 2 1 5 against 1 2 3 4 5: 1 - 6 * (9 + 1 + 1 + 9) / (5 * 24) = 0.
    assert report.correlation["right"]["wrong"] == pytest.approx(0)
    assert report.correlation["right"]["partial"] == pytest.approx(1)
    assert math.isnan(report.correlation["right"]["constant"])


def test_without_a_truth():
    report = compare_beliefs({"a": np.arange(3.0)}, np.full(3, -1))
    assert math.isnan(report.beliefs[0].auroc)
    assert report.noisy == 0
