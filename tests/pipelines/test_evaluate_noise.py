"""Score tables with truth to figures: hand-made tables of every shape."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.evaluate_noise import EvaluateNoise


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.fixture
def scores(tmp_path):
    """Five clean pairs, two permuted, one hard, one not scored, one of unknown truth."""
    return write(
        tmp_path / "s.parquet",
        uid=list("abcdefghij"),
        status=["ok"] * 8 + ["image_corrupt", "ok"],
        similarity=pa.array([0.9, 0.8, 0.7, 0.6, 0.3, 0.1, 0.2, 0.65, None, 0.5], pa.float32()),
        noise_probability=pa.array([0, 0, 0, 0, 0.6, 1, 0.95, 0, None, 0.1], pa.float32()),
        osa_noisy=[False, False, False, False, True, True, True, False, None, False],
        i2t_rank=pa.array([0, 0, 0, 1, 0, 5, 2, 0, None, 0], pa.int32()),
        is_noisy=[False] * 5 + [True] * 4 + [None],
        noise_kind=[None] * 5 + ["ncr", "ncr", "hard", "ncr", None],
    )


def run(*paths, **options):
    return EvaluateNoise(scores=paths, **options).run().summary


def test_by_hand(scores):
    found = run(scores)
    assert found.clean == 5
    assert found.noisy == {"ncr": 2, "hard": 1}
    assert (found.unscored, found.unknown) == (1, 1)
    assert found.noise_rate == pytest.approx(2.55 / 8)
    similarity, probability, rank = found.scores
    assert [s.column for s in found.scores] == ["similarity", "noise_probability", "i2t_rank"]
    everything, ncr, hard = similarity.kinds
    # The three lowest of eight are flagged: two permuted pairs and a clean one.
    assert similarity.flags == "similarity <= 0.3"
    assert everything.report.precision == everything.report.recall == pytest.approx(2 / 3)
    assert everything.report.accuracy == 6 / 8
    assert ncr.report.auroc == ncr.report.recall == 1
    assert ncr.mean_noise_rank == ncr.optimal_noise_rank == 6.5
    assert hard.report.auroc == 3 / 5
    assert probability.flags == "noise_probability >= 0.5"
    assert probability.kinds[1].report.recall == 1
    assert rank.kinds[0].report.recall == 2 / 3
    (osa, half) = found.rules
    assert osa.clean_kept == half.clean_kept == 0.8
    assert osa.noise_caught == {"all": 2 / 3, "ncr": 1, "hard": 0}
    assert osa.precision == 2 / 3
    fit = found.calibration
    assert fit.kept.expected == 0
    assert fit.kept.by_kind == {"ncr": 0, "hard": 1}
    assert fit.dropped.expected == pytest.approx(2.55)
    assert fit.dropped.noisy == 2
    assert fit.bins[9].pairs == 2  # 1 belongs to the last bin


def test_a_threshold_flags_what_its_condition_does(tmp_path):
    rounded = np.random.default_rng(0).integers(0, 11, 200) / 10
    path = write(
        tmp_path / "s.parquet",
        similarity=pa.array(rounded, pa.float32()),
        is_noisy=np.arange(200) % 3 == 0,
    )
    for number in range(11):
        bound = number / 10
        found = run(path, threshold=[f"similarity={bound}"], rule=[f"similarity <= {bound}"])
        report, rule = found.scores[0].kinds[0].report, found.rules[0]
        assert found.scores[0].flags == rule.flags.replace("0.0", "0").replace("1.0", "1")
        assert (report.clean_kept, report.recall) == (rule.clean_kept, rule.noise_caught["all"])
        assert rule.flagged == np.count_nonzero(np.round(10 * rounded) <= number)


def test_probabilities_that_are_nan_count_neither_for_the_rate_nor_for_calibration(tmp_path):
    path = write(
        tmp_path / "s.parquet",
        similarity=[0.1, 0.2, 0.3, 0.9],
        noise_probability=[0.75, np.nan, 0.25, 0.5],
        is_noisy=[True, True, False, False],
    )
    found = run(path)
    assert found.noise_rate == 0.5
    assert found.scores[0].kinds[0].report.recall == 1
    assert found.scores[1].unscored == 1
    assert found.calibration.brier == pytest.approx((0.25**2 + 0.25**2 + 0.5**2) / 3)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_truth_of_nan_is_unknown(tmp_path, kind):
    path = write(
        tmp_path / "s.parquet",
        similarity=[0.1, 0.2, 0.9, 0.8],
        is_noisy=pa.array([1, 0, np.nan, None], kind),
    )
    found = run(path)
    assert (found.clean, found.noisy, found.unknown) == (1, {"unspecified": 1}, 2)


def test_a_truth_in_words_is_refused(tmp_path, refused):
    path = write(tmp_path / "s.parquet", similarity=[0.1, 0.2], is_noisy=["noisy", "clean"])
    refused(EvaluateNoise, scores=[path])


def test_only_is_noisy_is_known(tmp_path):
    path = write(
        tmp_path / "old.parquet", similarity=[0.1, 0.2, 0.9], is_noisy=[True, False, False]
    )
    found = run(path)
    assert found.noisy == {"unspecified": 1}
    assert found.noise_rate_source == "the true share of noise"
    assert found.calibration is None
    assert found.rules == []


def test_kinds_called_all_and_other_are_kinds_like_any(tmp_path):
    kinds = ["all", "other", "other", *(f"kind {n}" for n in range(20) for _ in "ab")]
    path = write(
        tmp_path / "s.parquet",
        similarity=[0.5, *[0.0] * 42, 1.0],
        is_noisy=[*[True] * 43, False],
        noise_kind=[*kinds, None],
    )
    found = run(path, rule=["similarity < 0.1"])
    assert (len(found.noisy), found.noisy["other"]) == (20, 5)  # its own, and the two rarest
    caught = found.rules[0].noise_caught
    assert (caught["all"], caught["other"]) == (pytest.approx(42 / 43), 0.8)
    path = write(
        tmp_path / "few.parquet",
        similarity=[1.0, 0.0, 1.0],
        is_noisy=[True, True, False],
        noise_kind=["all", "x", None],
    )
    caught = run(path, rule=["similarity < 0.1"]).rules[0].noise_caught
    assert caught == {"all": 0.5, "kind all": 0.0, "x": 1.0}


def test_many_kinds_are_gathered(tmp_path):
    kinds = [f"kind {number} '" for number in range(40)]
    path = write(
        tmp_path / "s.parquet",
        similarity=np.linspace(0, 1, 41),
        is_noisy=[True] * 40 + [False],
        noise_kind=[*kinds, None],
    )
    found = run(path)
    assert len(found.noisy) == 20
    assert found.noisy["other"] == 21
    assert sum(found.noisy.values()) == 40


def test_no_noise_and_no_clean_pairs(tmp_path):
    for truth in (True, False):
        path = write(tmp_path / "s.parquet", similarity=[0.1, 0.2], is_noisy=[truth, truth])
        report = run(path).scores[0].kinds[0].report
        assert math.isnan(report.auroc)
        run(path, plot=str(tmp_path / f"{truth}.svg"))
        assert (tmp_path / f"{truth}.svg").stat().st_size > 5000


def test_columns_rules_and_thresholds_of_the_user(scores, tmp_path):
    joined = write(
        tmp_path / "n.parquet",
        uid=[*"abcdefgh"],
        agreement=[0.9, 0.9, 0.9, 0.9, 0.8, 0.1, 0.2, 0.3],
        similarity=[0.0] * 8,
    )
    found = run(
        scores,
        join=[joined],
        lower_is_noisier=["agreement"],
        rule=["agreement < 0.5 AND similarity > 0.6"],
        threshold=["similarity=0.65"],
    )
    agreement = found.scores[-1]
    assert agreement.column == "agreement"
    assert agreement.kinds[0].report.auroc == 1
    assert found.scores[0].flags == "similarity <= 0.65"
    assert found.scores[0].kinds[0].report.recall == 1
    assert found.rules[-1].noise_caught == {"all": 1 / 3, "ncr": 0, "hard": 1}


def test_a_threshold_flags_itself_and_a_rule_only_where_it_is_known(tmp_path):
    path = write(
        tmp_path / "s.parquet",
        clean_posterior=[0.2, 0.2, 0.9, 0.9],
        width=pa.array([50, None, 200, None], pa.int32()),
        is_noisy=[True, False, False, True],
    )
    found = run(path, threshold=["clean_posterior=0.2"], rule=["width < 100"])
    assert found.scores[0].flags == "clean_posterior <= 0.2"
    assert found.scores[0].kinds[0].report.recall == 0.5
    assert found.rules[-1].noise_caught["all"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"column": ["nothing"]},
        {"column": ["uid"]},
        {"threshold": {"nothing": 1.0}},
        {"threshold": {"similarity": math.nan}},
        {"rule": ["nothing > 1"]},
        {"rule": ["true) FROM scores; COPY scores TO 'x'; --"]},
        {"join": ["nowhere.parquet"]},
    ],
)
def test_mistakes(scores, options, refused):
    refused(run, scores, **options)


def test_tables_without_truth(tmp_path, refused):
    refused(run, write(tmp_path / "a.parquet", similarity=[0.1]))
    nothing = pa.array([None], pa.bool_())
    refused(run, write(tmp_path / "b.parquet", similarity=[0.1], is_noisy=nothing))
    refused(run, write(tmp_path / "c.parquet", uid=["a"], is_noisy=[True]))


def test_thresholds_of_the_command_line(refused):
    as_text = EvaluateNoise(scores=["s.parquet"], threshold=["a=1", "b=-0.5"])
    assert as_text.thresholds == {"a": 1.0, "b": -0.5}
    refused(EvaluateNoise, scores=["s.parquet"], threshold=["a"])


@pytest.mark.parametrize("name", ["f.png", "f.svg", "f.PDF"])
def test_figure(scores, tmp_path, name, refused):
    run(scores, plot=str(tmp_path / "new" / name))
    assert (tmp_path / "new" / name).stat().st_size > 5000
    refused(run, scores, plot=str(tmp_path / "f.gif"))


def test_neither_text_nor_nan_is_scored(tmp_path):
    path = write(
        tmp_path / "s.parquet",
        similarity=[0.1, float("nan"), 0.9, None],
        is_noisy=[True, True, False, False],
    )
    (found,) = run(path).scores
    assert (found.pairs, found.unscored) == (2, 2)
    assert found.kinds[0].report.auroc == 1


def test_scores_of_joined_tables_and_mixtures(scores, tmp_path, refused):
    dfn = write(
        tmp_path / "dfn.parquet",
        uid=list("abcdefgh"),
        similarity=[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2],
        noise_probability=[0.0, 0.1, 0.2, 0.3, 0.4, 0.7, 0.8, 0.9],
    )
    found = run(
        scores,
        join=[dfn],
        score=[
            "dfn.similarity",
            "dfn.noise_probability",
            "mix = rank(similarity) + rank(dfn.similarity)",
        ],
        threshold=["mix=1"],
        rule=["dfn.similarity < 0.45", "rank(similarity) < 0.3"],
    )
    assert found.joined == {"dfn": 8}
    assert found.rows == 10
    by_name = {score.column: score for score in found.scores}
    for name in ("dfn.similarity", "dfn.noise_probability"):
        assert by_name[name].kinds[0].report.auroc == 1
    assert by_name["dfn.noise_probability"].higher_is_noisier
    assert by_name["mix"].kinds[0].report.auroc == pytest.approx(1)
    assert by_name["mix"].flags == "mix <= 1"
    by_rule = {rule.rule: rule for rule in found.rules}
    assert by_rule["dfn.similarity < 0.45"].noise_caught["all"] == 1
    assert by_rule["dfn.similarity < 0.45"].clean_kept == 1
    assert by_rule["rank(similarity) < 0.3"].flagged == 3
    refused(run, scores, score=["similarity=1"])
    refused(run, scores, column=["lemon_score"])
