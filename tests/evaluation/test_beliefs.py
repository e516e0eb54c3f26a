import math

import numpy as np
import pytest
import torch

from ncclean.evaluation.beliefs import block_beliefs, compare_beliefs
from ncclean.scoring.ncu import clean_confidence


def test_beliefs_of_a_block():
    """Nineteen matched pairs and one whose caption is that of another image."""
    image = torch.eye(20)
    text = image.clone()
    text[0] = image[1]
    found = block_beliefs(image, text, 20.0, forget_percent=5)
    assert found["similarity"].tolist() == [0.0] + [1.0] * 19
    expected = clean_confidence(image @ text.T, 20.0)
    assert found["ncu_confidence"] == pytest.approx(expected.numpy())
    assert found["ncu_retain"].tolist() == [0.0] + [1.0] * 19
    assert found["disncl_clean"].tolist() == [0.0] + [1.0] * 19
    assert found["bayes_weight"][0] > 1.5 * found["bayes_weight"][1:].mean()
    again = block_beliefs(image, text, 20.0, forget_percent=5)
    assert (again["bayes_weight"] == found["bayes_weight"]).all()


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
