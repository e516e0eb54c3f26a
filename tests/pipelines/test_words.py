"""`score --words`: which word is wrong, and how probable it is that one is."""

import contextlib

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.report import Report
from ncclean_pipelines.score import Score
from sklearn.metrics import roc_auc_score

from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.execution.corpus_facts import WORD_CLASSES
from ncclean.reviewing.table import ReviewTable
from tests.factories import rendered

pytestmark = pytest.mark.usefixtures("rough_shifts")


def score(source, out, **options):
    settings = {"model": "demo", "pretrained": None, "precision": "fp32", "shift": "shuffled"}
    options = ScoreOptions(**{"words": True, "batch_size": 64, **options})
    return Score(shards=[str(source)], out=str(out), **settings, options=options).run().summary


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(
        tmp_path_factory.mktemp("words") / "shards",
        pairs=600,
        shard_size=300,
        noise={"hard": 0.2},
        seed=1,
    )


@pytest.fixture(scope="module")
def scored(shards, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored") / "scores.parquet"
    return score(shards, out), out


def test_a_wrong_word_is_found_better_than_by_the_cosine(scored):
    table = pq.read_table(scored[1])
    table = table.filter(pc.is_valid(table["near_miss_score"]))
    assert len(table) > 520
    clean = ~table["is_noisy"].to_numpy(zero_copy_only=False)

    def auroc(name):
        return roc_auc_score(clean, table[name].to_numpy())

    assert auroc("near_miss_score") > auroc("similarity") + 0.02
    assert auroc("word_margin") > auroc("neg_clip_loss")
    probability = table["near_miss_probability"].to_numpy()
    assert roc_auc_score(~clean, probability) > 0.9
    summary = scored[0]
    assert summary.near_miss_rate.low < 0.25
    assert summary.near_miss_rate.high > 0.15
    metadata = pq.read_schema(scored[1]).metadata
    assert float(metadata[b"near_miss_rate"]) == summary.near_miss_rate.value


def test_the_suspect_word_is_one_of_the_caption(scored):
    rows = pq.read_table(scored[1]).to_pylist()
    suspect = [row for row in rows if row["suspect_word"] is not None]
    assert len(suspect) > 40
    for row in rows:
        assert (row["suspect_word"] is None) == (row["better_word"] is None)
        assert (row["suspect_word"] is not None) == ((row["word_margin"] or 0) < 0)
    for row in suspect:
        assert row["suspect_word"] in row["text"]
        assert row["suspect_word"].lower() != row["better_word"].lower()


def test_pieces_equal_the_whole(shards, scored, tmp_path):
    """A shard at a time: the histograms of near misses add up as the others do."""
    out = tmp_path / "scores.parquet"
    score(shards / "00000.tar", out)
    assert score(shards, out).near_miss_rate == scored[0].near_miss_rate
    assert pq.read_table(out).equals(pq.read_table(scored[1]))


def test_a_list_of_ones_own_is_part_of_the_run(shards, tmp_path, refused):
    out, words = tmp_path / "scores.parquet", tmp_path / "words.txt"
    words.write_text("[shape]\ncircle\nsquare\n")
    score(shards / "00000.tar", out, word_classes=str(words))
    found = pq.read_table(out)["suspect_word"].drop_null().to_pylist()
    assert {word.lower() for word in found} == {"circle", "square"}
    words.write_text("[shape]\ncircle\nring\n")
    refused(score, shards / "00000.tar", out, word_classes=str(words))


@pytest.mark.slow
def test_classes_of_the_corpus_are_learnt_once_and_lie_with_the_run(shards, tmp_path, refused):
    """The same from shards in another order; a run that goes on takes those it has."""
    out, other = tmp_path / "scores.parquet", tmp_path / "other.parquet"
    reverse = sorted(shards.glob("*.tar"), reverse=True)
    command = {"model": "demo", "pretrained": None, "precision": "fp32", "shift": "shuffled"}
    options = ScoreOptions(words=True, word_classes="corpus", batch_size=64)
    Score(shards=list(map(str, reverse)), out=str(other), options=options, **command).run()
    score(shards / "00000.tar", out, word_classes="corpus")
    listed = (tmp_path / "scores.parquet.work" / WORD_CLASSES).read_text()
    assert "[" in listed
    score(shards, out, word_classes="corpus")
    assert (tmp_path / "scores.parquet.work" / WORD_CLASSES).read_text() == listed
    Score(shards=[str(shards)], out=str(out), options=options, overwrite=True, **command).run()
    again = (tmp_path / "scores.parquet.work" / WORD_CLASSES).read_text()
    assert again == (tmp_path / "other.parquet.work" / WORD_CLASSES).read_text() != listed
    table, turned = (pq.read_table(path).sort_by("uid") for path in (out, other))
    for name in schema.WORD_TYPES:
        assert table[name].equals(turned[name])
    clean = ~table["is_noisy"].to_numpy(zero_copy_only=False)
    score_of = table["near_miss_score"].to_numpy()
    known = ~np.isnan(score_of)
    assert known.mean() > 0.95
    assert roc_auc_score(clean[known], score_of[known]) > 0.9
    refused(score, shards, out)


def test_captions_without_words_in_common_have_no_classes(tmp_path):
    """The run says so, and the columns are null."""
    folder = tmp_path / "few"
    rendered(folder, pairs=12, shard_size=12, seed=1)
    out = tmp_path / "s.parquet"
    score(folder, out, word_classes="corpus")
    assert (tmp_path / "s.parquet.work" / WORD_CLASSES).read_text() == ""
    assert pq.read_table(out)["word_margin"].null_count == 12


def test_an_estimator_that_does_not_know_the_words_gives_no_probabilities(shards, tmp_path):
    request = Score(
        shards=[str(shards / "00000.tar")], out=str(tmp_path / "s.parquet"),
        model="demo-noisy", pretrained=None,
        precision="fp32", shift="shuffled", options=ScoreOptions(words=True, batch_size=64),
    )  # fmt: skip
    result = request.run()
    _, low, high = result.summary.near_miss_rate
    assert not high - low <= 0.2  # too few look matched, or they tell nothing
    shown = " ".join(map(str, result.shown))
    assert "cannot tell" in shown
    assert "--words: this model cannot tell words" in shown
    table = pq.read_table(tmp_path / "s.parquet")
    assert table["near_miss_probability"].null_count == len(table)
    assert table["near_miss_score"].null_count < len(table) / 10
    Report(scores=[request.out], out=str(tmp_path / "report.html")).run()
    page = (tmp_path / "report.html").read_text()
    assert "--words: this model cannot tell words" in " ".join(page.split())
    with contextlib.closing(ReviewTable.open([request.out])) as review:
        assert "cannot tell" in review.views["near-misses"].title
        assert review.views["suspects"].title == "Suspects"


@pytest.mark.parametrize("options", [{"word_classes": "list.txt"}, {"words_per_caption": 5}])
def test_options_of_words_need_it(options, refused):
    refused(ScoreOptions, **options)
