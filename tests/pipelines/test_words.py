"""`score --words`: which word is wrong, and how probable it is that one is."""

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.score import Score
from sklearn.metrics import roc_auc_score

from ncclean import schema
from ncclean.config import ScoreOptions
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.errors import InputError, ResumeError

pytestmark = pytest.mark.usefixtures("rough_shifts")


def score(source, out, **options):
    settings = {"model": "demo", "pretrained": None, "precision": "fp32", "shift": "shuffled"}
    options = ScoreOptions(**{"words": True, "batch_size": 64, **options})
    return Score(shards=[str(source)], out=str(out), **settings, options=options).run().summary


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words") / "shards"
    options = CorpusOptions(pairs=800, shard_size=400, noise={"hard": 0.2}, seed=1)
    write_corpus(folder, options, workers=1)
    return folder


@pytest.fixture(scope="module")
def scored(shards, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored") / "scores.parquet"
    return score(shards, out), out


def test_a_wrong_word_is_found_better_than_by_the_cosine(scored):
    table = pq.read_table(scored[1])
    table = table.filter(pc.is_valid(table["near_miss_score"]))
    assert len(table) > 700
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
    assert len(suspect) > 50
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


def test_a_list_of_ones_own_is_part_of_the_run(shards, tmp_path):
    out, words = tmp_path / "scores.parquet", tmp_path / "words.txt"
    words.write_text("[shape]\ncircle\nsquare\n")
    score(shards / "00000.tar", out, word_classes=str(words))
    found = pq.read_table(out)["suspect_word"].drop_null().to_pylist()
    assert {word.lower() for word in found} == {"circle", "square"}
    words.write_text("[shape]\ncircle\nring\n")
    with pytest.raises(ResumeError, match="words"):
        score(shards / "00000.tar", out, word_classes=str(words))


def test_without_words_the_table_has_none_of_the_columns(shards, tmp_path):
    score(shards / "00000.tar", tmp_path / "scores.parquet", words=False)
    names = pq.read_schema(tmp_path / "scores.parquet").names
    assert not set(names) & set(schema.WORD_TYPES)


def test_an_estimator_that_does_not_know_the_words_gives_no_probabilities(shards, tmp_path):
    request = Score(
        shards=[str(shards)], out=str(tmp_path / "s.parquet"), model="demo-noisy", pretrained=None,
        precision="fp32", shift="shuffled", options=ScoreOptions(words=True, batch_size=64),
    )  # fmt: skip
    _, low, high = request.run().summary.near_miss_rate
    assert not high - low <= 0.2  # too few look matched, or they tell nothing
    table = pq.read_table(tmp_path / "s.parquet")
    assert table["near_miss_probability"].null_count == len(table)
    assert table["near_miss_score"].null_count < len(table) / 10


@pytest.mark.parametrize("options", [{"word_classes": "list.txt"}, {"words_per_caption": 5}])
def test_options_of_words_need_it(options):
    with pytest.raises(InputError, match="--words"):
        ScoreOptions(**options)
