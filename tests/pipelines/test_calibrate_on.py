"""The noise probability on another score than the cosine."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ncclean_pipelines.report import Report
from ncclean_pipelines.score import Score
from scipy.stats import norm

from ncclean.base.config import ScoreOptions
from ncclean.scoring.calibration import fit_null
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import Distributions
from tests.pipelines.test_calibrate_by import RATES, corpus

ON = "neg_clip_loss"


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("groups") / "e", files=3)


def score(source, out, by=None, on=ON, **options):
    request = Score(
        shards=[str(source)],
        out=str(out),
        options=ScoreOptions(calibrate_by=by),
        calibrate_on=on,
        scale=20.0,
        **options,
    )
    return request.run().summary


def test_the_probability_follows_the_score_and_is_calibrated(embeddings, tmp_path):
    out = tmp_path / "s.parquet"
    summary = score(embeddings, out, by="language")
    for group in summary.groups:
        assert group.noise_rate.low <= RATES[group.group] <= group.noise_rate.high, group
    table = pq.read_table(out)
    assert table.schema.metadata[b"calibrated_on"] == ON.encode()
    rows = table.to_pandas()
    for _, group in rows.groupby("calibration_group"):
        ordered = group.sort_values(ON)
        assert (np.diff(ordered.noise_probability) <= 1e-6).all()
        assert (np.diff(ordered.null_p_value) <= 1e-6).all()
    assert rows.noise_probability.sum() == pytest.approx(rows.is_noisy.sum(), rel=0.06)
    kept = rows[rows.noise_probability < 0.5]
    assert kept.noise_probability.sum() == pytest.approx(kept.is_noisy.sum(), abs=60)
    assert len(Report(scores=[str(out)], out=str(tmp_path / "r.html")).run().summary.page.pairs)


@pytest.fixture(scope="module")
def on_each(embeddings, tmp_path_factory):
    """The folder of tables with one null on each of two scores, and their summaries."""
    folder = tmp_path_factory.mktemp("on")
    return folder, {on: score(embeddings, folder / on, on=on) for on in ("similarity", ON)}


def test_the_rest_of_the_table_is_the_same(on_each):
    found, plain = (pq.read_table(on_each[0] / on) for on in (ON, "similarity"))
    different = [n for n in found.column_names if not found[n].equals(plain[n])]
    assert different == ["noise_probability", "null_p_value"]


def separated(by, rng, pairs=20_000, rate=0.2):
    """A score of pairs, of which a share is mismatched and the others are `by` sigmas off."""
    own = rng.normal(size=pairs)
    own[round(rate * pairs) :] += by
    return Distributions(
        matched=Histogram.of(torch.from_numpy(0.05 * own)),
        mismatched=Histogram.of(torch.from_numpy(0.05 * rng.normal(size=400_000))),
    )


@pytest.mark.parametrize(
    ("cosine", "other", "taken"), [(3.0, 3.2, ON), (2.9, 3.0, ON), (3.2, 3.0, "similarity")]
)
def test_auto_takes_the_cosine_only_if_that_is_clearly_better(cosine, other, taken):
    rng = np.random.default_rng(0)
    distributions = separated(cosine, rng)
    distributions.scores[ON] = separated(other, rng)
    score, null = fit_null(distributions, "auto")
    assert score == taken
    assert null.expected_error == fit_null(distributions, taken)[1].expected_error


def test_auto_takes_the_cosine_where_the_rates_contradict(embeddings, on_each, tmp_path):
    """Three languages with one null: with neg_clip_loss nothing seems to be wrong."""
    summaries = on_each[1]
    assert summaries[ON].noise_rate.high < summaries["similarity"].noise_rate.low
    assert score(embeddings, tmp_path / "auto", on="auto").calibrated_on == "similarity"


def test_a_run_that_did_not_count_them_keeps_to_the_cosine(on_each, tmp_path, refused):
    """Runs of older versions have no histograms of neg_clip_loss."""
    out = shutil.copytree(on_each[0] / "similarity", tmp_path / "scores")
    before = on_each[1]["similarity"]
    path = next(tmp_path.rglob("shards.parquet"))
    table = pq.read_table(path)
    records = [json.loads(text) for text in table["record"].to_pylist()]
    texts = [json.dumps({k: v for k, v in one.items() if k != "scores"}) for one in records]
    number = table.schema.get_field_index("record")
    pq.write_table(table.set_column(number, "record", pa.array(texts)), path)
    again = Score(shards=[], out=str(out), finalize_only=True).run().summary
    assert (again.calibrated_on, again.noise_rate) == ("similarity", before.noise_rate)
    refused(Score, shards=[], out=str(out), calibrate_on=ON, finalize_only=True)


def test_less_than_a_pair_is_not_enough_for_auto_to_leave_the_cosine():
    """Of 100 pairs less than one is expected to be wrong by either."""
    distributions = separated(5.0, np.random.default_rng(0), pairs=100)
    distributions.scores[ON] = separated(8.0, np.random.default_rng(0), pairs=100)
    taken, cosine = fit_null(distributions, "auto")
    assert taken == "similarity"
    assert 0 < cosine.overlap - fit_null(distributions, ON)[1].overlap < 0.01


def test_the_overlap_of_two_normal_scores_by_hand():
    """With .4 mismatched and 3 sigmas between: .4 Phi(-z) + .6 Phi(z - 3) at the best z."""
    z = 1.5 + np.log(0.4 / 0.6) / 3
    by_hand = 0.4 * norm.sf(z) + 0.6 * norm.cdf(z - 3)
    for rate in (0.05, 0.2, 0.6):
        distributions = separated(3.0, np.random.default_rng(0), rate=rate)
        overlap = fit_null(distributions, "similarity")[1].overlap
        assert overlap == pytest.approx(by_hand, abs=0.01)
