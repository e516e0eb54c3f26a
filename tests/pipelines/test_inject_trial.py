"""`evaluate noise --inject`: does it work on a corpus that nobody has judged?"""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.evaluate_noise import EvaluateNoise, TrialOptions
from upath import UPath

from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.errors import InputError
from ncclean.storage.permuted import permute_captions


def evaluate(source, share=0.2, **options):
    return EvaluateNoise(
        scores=[str(source)], inject=share, trial=TrialOptions(**{"scale": 54.8, **options})
    ).run()


def test_from_embeddings(scored):
    """The corpus has 20 % noise of its own, which counts as clean."""
    result = evaluate(scored / "embeddings")
    evaluation, trial = result.summary, result.summary.trial
    assert evaluation.clean + evaluation.noisy["ncr"] == trial.pairs == 591
    assert trial.moved == pytest.approx(0.2, abs=0.005)
    assert trial.before.low <= 0.2 <= trial.before.high
    assert trial.after.low <= trial.expected <= trial.after.high
    assert trial.expected == pytest.approx(
        trial.before.value + trial.moved * (1 - trial.before.value)
    )
    similarity = next(score for score in evaluation.scores if score.column == "similarity")
    auroc = similarity.kinds[0].report.auroc
    # A fifth of what passes for clean is as noisy as what was injected.
    assert auroc == pytest.approx(1 - trial.before.value / 2, abs=0.04)
    assert json.loads(json.dumps(result.to_json()))["trial"]["pairs"] == 591
    shown = "\n".join(map(str, result.shown))
    assert "118 of them" in shown or "20.0% of them got the caption" in shown
    assert "lower bounds" in shown


@pytest.mark.usefixtures("rough_shifts")
def test_from_images(corpus):
    result = EvaluateNoise(
        scores=[str(corpus)], inject=0.3, trial=TrialOptions(model="demo", pairs=200)
    ).run()
    trial = result.summary.trial
    assert 180 < trial.pairs < 220
    assert trial.moved == pytest.approx(0.3, abs=0.02)
    assert result["trial"]["after"] > 0.3


def test_the_permuted_copy(scored, tmp_path):
    shards = resolve_embeddings([str(scored / "embeddings")])
    made = permute_captions(shards, None, UPath(tmp_path), share=0.5, pairs=1000, seed=1)
    moved = 0
    for number in range(3):
        given, permuted = (
            pq.read_table(f"{folder}/metadata/metadata_{number}.parquet").to_pydict()
            for folder in (made.given, made.permuted)
        )
        assert given["uid"] == permuted["uid"]
        assert set(given["is_noisy"]) == {None}
        noisy = np.array(permuted["is_noisy"])
        differs = np.array(given["caption"]) != np.array(permuted["caption"])
        assert not differs[~noisy].any()
        assert differs[noisy].mean() > 0.95  # some captions occur twice
        image = [np.load(f"{f}/img_emb/img_emb_{number}.npy") for f in (made.given, made.permuted)]
        assert np.array_equal(*image)
        moved += noisy.sum()
    assert made.moved == pytest.approx(moved / made.pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inject": 0.001}, "are too few to exchange captions"),
        ({"inject": 0.0}, "--inject"),
        ({"trial": TrialOptions(model="demo")}, "--model is for images, and these are embeddings"),
    ],
)
def test_what_cannot_be_tried(scored, options, message):
    with pytest.raises(InputError, match=message):
        EvaluateNoise(**{"scores": [str(scored / "embeddings")], "inject": 0.2, **options}).run()


def test_options_of_a_trial_need_one(scored):
    with pytest.raises(InputError, match="--pairs needs --inject"):
        EvaluateNoise(scores=[str(scored / "scores.parquet")], trial=TrialOptions(pairs=100))
