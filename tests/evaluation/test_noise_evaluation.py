""" """

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from ncclean.base.rules import Rule
from ncclean.evaluation.detection import SortedScores
from ncclean.evaluation.noise_choice import NoiseScore, threshold_at_rate
from ncclean.evaluation.noise_evaluation import (
    BINS,
    calibration,
    evaluate_rule,
    evaluate_score,
    figure_of,
)


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


def judged(values, code, score, rate=0.5):
    scores = SortedScores.of(score.sign * np.asarray(values, float), np.asarray(code, np.int8))
    return evaluate_score(scores, score, ["ncr", "hard"], rate, "said the test", 0)


def test_weights_of_the_methods_page():
    evaluation = judged([0.9, 0.1, 0.5, 0.0], [0, 1, 0, 2], NoiseScore("osa_weight", False, 0.0))
    everything, ncr, hard = evaluation.kinds
    assert everything.mean_noise_rank == everything.optimal_noise_rank == 3.5
    assert (ncr.noisy, hard.noisy, ncr.clean) == (1, 1, 2)
    assert everything.report.recall == 0.5
    assert hard.report.recall == 1
    assert ncr.report.recall == 0
    assert evaluation.flags == "osa_weight <= 0"
    assert everything.report.threshold == 0


def test_a_threshold_below_does_not_flag_itself():
    values, code = [0.5, 0.49, 0.9], [1, 1, 0]
    strict = NoiseScore("clean_posterior", False, 0.5, below=True)
    assert judged(values, code, strict).kinds[0].report.recall == 0.5
    assert (
        judged(values, code, NoiseScore("clean_posterior", False, 0.5)).kinds[0].report.recall == 1
    )
    assert strict.condition(0.5) == "clean_posterior < 0.5"


def test_without_a_threshold_the_estimated_share_is_flagged():
    evaluation = judged([0.1, 0.2, 0.3, 0.4], [1, 1, 0, 0], NoiseScore("similarity", False))
    assert evaluation.kinds[0].report.threshold == pytest.approx(0.2)
    assert evaluation.kinds[0].report.accuracy == 1
    assert evaluation.kinds[0].best_threshold == pytest.approx(0.2)
    assert evaluation.threshold_source == "the noisiest 50.0%, said the test"


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("share", [1 / 3, 7e-5, 7e17])
def test_the_condition_flags_the_pairs_that_were_counted(kind, share):
    shares = np.array([share, share, share, 2 * share], kind)
    scores = SortedScores.of(-shares, np.array([1, 1, 0, 0], np.int8))
    evaluation = evaluate_score(scores, NoiseScore("vote", False), [], 0.5, "said the test", 0)
    assert evaluation.kinds[0].report.recall == 1
    flags = f"SELECT count(*) FROM pairs WHERE {evaluation.flags}"
    with duckdb.connect() as connection:
        connection.register("pairs", pa.table({"vote": shares}))
        assert connection.execute(flags).fetchone() == (3,)


@pytest.mark.parametrize(("rate", "expected"), [(0, np.inf), (0.26, 3), (0.25, 4), (1, 1), (2, 1)])
def test_threshold_at_rate(rate, expected):
    assert threshold_at_rate(np.array([4.0, 3.0, 2.0, 1.0]), rate) == expected


def test_rule_by_hand():
    rule = Rule("r", "true")
    evaluation = evaluate_rule(rule, np.array([80, 10, 10]), np.array([8, 9, 3]), ["ncr", "hard"])
    assert evaluation.clean_kept == 0.9
    assert evaluation.noise_caught == {"all": 0.6, "ncr": 0.9, "hard": 0.3}
    assert evaluation.precision == 0.6
    assert evaluation.flagged == 20


def test_figure_is_in_units_of_the_column():
    score = NoiseScore("similarity", False)
    values = np.linspace(0.2, 0.8, 1000)
    scores = SortedScores.of(-values, (values < 0.4).astype(np.int8))
    evaluation = figure_of(scores, score, ["ncr"])
    assert (np.diff(evaluation.edges) > 0).all()
    assert evaluation.counts.sum() == 1000
    centres = (evaluation.edges[1:] + evaluation.edges[:-1]) / 2
    assert (centres[evaluation.counts[1] > 0] < 0.42).all()
