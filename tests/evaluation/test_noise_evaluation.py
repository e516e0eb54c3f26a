import numpy as np
import pytest

from ncclean.base.rules import Rule
from ncclean.evaluation.curves import SortedScores
from ncclean.evaluation.noise_evaluation import evaluate_rule, evaluate_score, figure_of
from ncclean.evaluation.noise_scores import NoiseScore, threshold_at_rate


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
