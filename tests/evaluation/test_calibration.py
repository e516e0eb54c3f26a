import numpy as np
import pytest

from ncclean.evaluation.calibration import BINS, calibration


def test_by_hand():
    pairs = np.zeros((BINS, 3), dtype=int)
    probability, squares = np.zeros((2, BINS, 3))
    # Three clean pairs and one of the second kind at 0.2; one pair of the first kind at 0.9.
    pairs[2, [0, 2]] = 3, 1
    probability[2, [0, 2]] = 0.6, 0.2
    squares[2, [0, 2]] = 0.12, 0.04
    pairs[9, 1], probability[9, 1], squares[9, 1] = 1, 0.9, 0.81
    result = calibration(pairs, probability, squares, ["ncr", "hard"])
    assert result.bins[2].predicted == pytest.approx(0.2)
    assert result.bins[2].observed == 0.25
    assert np.isnan(result.bins[0].observed)
    assert result.expected_error == pytest.approx((4 * 0.05 + 0.1) / 5)
    assert result.brier == pytest.approx((3 * 0.04 + 0.64 + 0.01) / 5)
    assert result.kept.expected == pytest.approx(0.8)
    assert result.kept.noisy == 1
    assert result.kept.by_kind == {"ncr": 0, "hard": 1}
    assert (result.dropped.pairs, result.dropped.noisy) == (1, 1)
