"""Domain adaptation: strictly clean pairs in, a model for `local-dir:` out."""

import json

import open_clip
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.adapt import Adapt
from ncclean_pipelines.score import Score

from ncclean.training.options import AdaptOptions
from tests.factories import rendered


def mean_score_of_clean_pairs(shards, out, model):
    """Of neg_clip_loss: minus the loss in units of cosine."""
    Score(shards=[str(shards)], out=str(out), model=model, shift=0.0).run()
    table = pq.read_table(out).to_pandas()
    return table.neg_clip_loss[table.is_noisy == False].mean()  # noqa: E712  null is neither


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Pairs that the adaptation has not seen."""
    return rendered(tmp_path_factory.mktemp("other") / "shards", pairs=150, noise={}, seed=99)


@pytest.fixture
def scores(scored):
    return scored / "scores.parquet"


def request(corpus, scores, out, **options):
    fields = {name: options.pop(name) for name in ("threshold", "overwrite") if name in options}
    chosen = {"steps": 8, "batch_size": 64, "learning_rate": 3e-4, **options}
    return Adapt(
        scores=[str(scores)], shards=[str(corpus)], out=str(out), model="demo-noisy",
        options=AdaptOptions(**chosen), **fields,
    )  # fmt: skip


def test_the_adapted_model_scores_and_fits_the_domain_better(corpus, scores, other, tmp_path):
    before = mean_score_of_clean_pairs(other, tmp_path / "before.parquet", "demo-noisy")
    summary = request(corpus, scores, tmp_path / "adapted").run().summary
    assert 200 < summary.pairs < summary.scored
    assert summary.steps == 8
    assert summary.last_loss < summary.first_loss
    adapted = f"local-dir:{tmp_path / 'adapted'}"
    assert mean_score_of_clean_pairs(other, tmp_path / "after.parquet", adapted) > before
    config = json.loads((tmp_path / "adapted" / "open_clip_config.json").read_text())
    assert config["model_cfg"]["embed_dim"] == 128
    assert open_clip.create_model(adapted).visual.image_size == (64, 64)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 5000},
        {"batch_size": 1},
        {"steps": 0},
        {"learning_rate": 0.0},
        {"threshold": 1.0},
        {"threshold": 0.99999999, "batch_size": 5000},
    ],
)
def test_what_cannot_be_done_is_refused(corpus, scores, tmp_path, options, refused):
    refused(request, corpus, scores, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_same_again_is_done_and_another_is_refused(corpus, scores, tmp_path, refused):
    out = tmp_path / "adapted"
    first = request(corpus, scores, out, steps=2, batch_size=16).run().summary
    weights = out / "open_clip_model.safetensors"
    written = weights.stat().st_mtime_ns
    again = request(corpus, scores, out, steps=2, batch_size=16).run().summary
    assert again == first
    assert weights.stat().st_mtime_ns == written
    refused(request, corpus, scores, out, steps=3, batch_size=16)
    assert weights.stat().st_mtime_ns == written
    (out / "notes.txt").write_text("mine")
    other = request(corpus, scores, out, steps=3, batch_size=16, overwrite=True).run().summary
    assert other.steps == 3
    assert weights.stat().st_mtime_ns != written
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_a_users_files_is_refused(corpus, scores, tmp_path, overwrite, refused):
    (tmp_path / "open_clip_config.json").write_text("mine")
    refused(request, corpus, scores, tmp_path, steps=2, overwrite=overwrite)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
