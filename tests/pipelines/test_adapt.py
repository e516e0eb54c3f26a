"""Domain adaptation: strictly clean pairs in, a model for `local-dir:` out."""

import json

import open_clip
import pyarrow.parquet as pq
import pytest

from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.errors import InputError
from ncclean.training.adapt import AdaptOptions
from pipelines.adapt import AdaptRequest, adapt
from pipelines.score import ScoreRequest, score


def mean_score_of_clean_pairs(shards, out, model):
    """Of neg_clip_loss: minus the loss in units of cosine."""
    score(ScoreRequest(shards=[str(shards)], out=str(out), model=model, shift=0.0))
    table = pq.read_table(out).to_pandas()
    return table.neg_clip_loss[table.is_noisy == False].mean()  # noqa: E712  null is neither


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Pairs that the adaptation has not seen."""
    out = tmp_path_factory.mktemp("other") / "shards"
    write_corpus(out, CorpusOptions(pairs=500, noise={}, seed=99), 2)
    return out


def request(corpus, scores, out, **options):
    threshold = options.pop("threshold", 0.9)
    chosen = {"steps": 15, "batch_size": 128, "learning_rate": 3e-4, **options}
    return AdaptRequest(
        scores=[str(scores)], shards=[str(corpus)], out=str(out), model="demo-noisy",
        threshold=threshold, options=AdaptOptions(**chosen),
    )  # fmt: skip


def test_the_adapted_model_scores_and_fits_the_domain_better(corpus, other, tmp_path):
    mean_score_of_clean_pairs(corpus, tmp_path / "scores.parquet", "demo-noisy")
    before = mean_score_of_clean_pairs(other, tmp_path / "before.parquet", "demo-noisy")
    summary = adapt(request(corpus, tmp_path / "scores.parquet", tmp_path / "adapted"))
    assert 500 < summary.pairs < summary.scored
    assert summary.steps == 15
    assert summary.last_loss < summary.first_loss
    adapted = f"local-dir:{tmp_path / 'adapted'}"
    assert mean_score_of_clean_pairs(other, tmp_path / "after.parquet", adapted) > before
    config = json.loads((tmp_path / "adapted" / "open_clip_config.json").read_text())
    assert config["model_cfg"]["embed_dim"] == 128
    assert open_clip.create_model(adapted).visual.image_size == (64, 64)
    with pytest.raises(InputError, match="exists"):
        adapt(request(corpus, tmp_path / "scores.parquet", tmp_path / "adapted"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 5000}, "fewer than --batch-size 5000"),
        ({"batch_size": 1}, "--batch-size"),
        ({"steps": 0}, "--steps"),
        ({"learning_rate": 0.0}, "--learning-rate"),
        ({"threshold": 1.0}, "--threshold"),
    ],
)
def test_what_cannot_be_done_is_refused(corpus, tmp_path, options, message):
    score(ScoreRequest(shards=[str(corpus / "00000.tar")], out=str(tmp_path / "s.parquet"),
                       model="demo", shift=0.0))  # fmt: skip
    with pytest.raises(InputError, match=message):
        adapt(request(corpus, tmp_path / "s.parquet", tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()
