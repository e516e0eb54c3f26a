"""`score --caption-parts`, and what follows from it: select, export, finetune, report."""

import itertools
import json
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.score import Score
from sklearn.metrics import roc_auc_score

import ncclean
from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs, resolve_sources
from ncclean.models.estimator import Estimator
from ncclean.storage.run_facts import read_facts
from tests.factories import rendered

MODEL = {"model": "demo", "pretrained": None, "precision": "fp32", "shift": 0.2}


def score(source, out, **changes):
    options = {"caption_parts": "sentences", "batch_size": 64}
    options = ScoreOptions(**{**options, **changes})
    return Score(shards=[str(source)], out=str(out), **MODEL, options=options).run()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Of 400 captions of five sentences a fifth has a foreign one, a tenth is another pair's."""
    folder = tmp_path_factory.mktemp("parts") / "shards"
    noise = {"foreign_sentence": 0.2, "ncr": 0.1}
    return rendered(folder, pairs=400, shard_size=50, noise=noise, sentences=5, broken=0.02, seed=1)


@pytest.fixture(scope="module")
def scored(shards, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored") / "scores.parquet"
    return score(shards, out), out


@pytest.fixture(scope="module")
def truth(shards):
    return {
        (shard.name, sample.key): sample.metadata
        for shard in resolve_pairs([str(shards)])
        for sample in read_samples(shard)
    }


def rows_of(out):
    return [row for row in pq.read_table(out).to_pylist() if row["status"] == "ok"]


def test_the_noisy_are_found_and_the_sentence_is_named(scored, truth):
    rows = rows_of(scored[1])
    noisy = np.array([row["is_noisy"] for row in rows])
    probability = np.array([row["part_noise_probability"] for row in rows])
    assert roc_auc_score(noisy, probability) > 0.95
    assert probability.sum() == pytest.approx(noisy.sum(), rel=0.2)
    flagged = [
        (row["worst_part_number"], truth[row["shard"], row["key"]]["noisy_part"])
        for row in rows
        if row["noise_kind"] == "foreign_sentence" and row["part_noise_probability"] >= 0.5
    ]
    assert len(flagged) > 53
    assert np.mean([worst == right for worst, right in flagged]) > 0.9


def test_columns_of_the_table(scored):
    table = pq.read_table(scored[1])
    names = [*schema.PART_TYPES]
    assert [name for name in table.schema.names if name in names] == names
    for row in table.to_pylist():
        if row["status"] != "ok":
            assert all(row[name] is None for name in names), row
            continue
        parts = parts_of(row["text"], row["part_starts"])
        probabilities = row["part_noise_probabilities"]
        assert len(parts) == row["part_count"] == len(probabilities) == len(row["part_log_odds"])
        assert row["worst_part"] == parts[row["worst_part_number"]]
        # Each is at least that of the whole being foreign, and any is at least each.
        assert row["part_noise_probability"] >= max(probabilities) - 1e-6
        assert row["part_noise_probability"] <= sum(probabilities) + 1e-6


def test_the_summary_and_the_metadata_agree(scored):
    result, out = scored
    summary, facts = result.summary, read_facts([str(out)])
    assert summary.has_parts
    assert summary.part_noise_rate == facts.part_noise_rate
    # One of five sentences in a fifth of the captions; all of another's are no part of this.
    assert summary.part_noise_rate.low < 0.04 < summary.part_noise_rate.high
    assert (summary.captions_cut, summary.context_length) == (facts.captions_cut, 77)
    tokens = pq.read_table(out)["caption_tokens"].drop_null().to_pylist()
    assert summary.captions_cut == sum(count > 77 for count in tokens) > 0
    text = " ".join(map(str, result.shown))
    assert "wrong sentences" in text
    assert "add --caption-parts" not in text


@pytest.mark.slow
def test_pieces_equal_the_whole(shards, tmp_path):
    few = shards / "0000[01].tar"
    pieces, whole = (tmp_path / f"{name}.parquet" for name in ("pieces", "whole"))
    score(shards / "00000.tar", pieces)
    assert score(few, pieces).summary.part_noise_rate == score(few, whole).summary.part_noise_rate
    assert pq.read_table(pieces).equals(pq.read_table(whole))


def test_another_run_without_or_with_parts_is_refused(shards, scored, tmp_path, refused):
    refused(score, shards, scored[1], caption_parts=None)


def test_without_it_the_table_has_none_of_the_columns_and_the_summary_names_it(shards, tmp_path):
    result = score(shards / "00000.tar", tmp_path / "s.parquet", caption_parts=None)
    names = pq.read_schema(tmp_path / "s.parquet").names
    assert not set(names) & set(schema.PART_TYPES)
    assert "caption_tokens" in names
    assert "add --caption-parts sentences" in " ".join(map(str, result.shown))


def test_no_text_writes_no_captions(shards, scored, tmp_path):
    score(shards / "00000.tar", tmp_path / "s.parquet", text=False)
    table = pq.read_table(tmp_path / "s.parquet")
    assert table["text"].null_count == table["worst_part"].null_count == len(table)
    assert table["part_starts"].null_count < len(table) / 10
    words = [word for row in rows_of(scored[1]) for word in row["text"].split() if len(word) > 7]
    content = (tmp_path / "s.parquet").read_bytes()
    assert not [word for word in words[:500] if word.encode() in content]


def test_the_dry_run_knows_what_is_cut_and_what_sentences_and_words_cost(
    shards, tmp_path, monkeypatch
):
    """As many further texts as the first captions would have encoded, and their time."""
    monkeypatch.setattr(Estimator, "seconds_per_batch", lambda self, size: size / 100)
    plain, parts, words = (
        Score(
            shards=[str(shards)], out=str(tmp_path / "s.parquet"), dry_run=True, **MODEL,
            options=ScoreOptions(batch_size=64, **one),
        ).run()
        for one in ({}, {"caption_parts": "sentences"}, {"words": True})
    )  # fmt: skip
    assert plain.summary.context_length == 77
    assert 0.2 < plain.summary.cut_share < 1
    assert plain.summary.further_texts == 0
    shown = [" ".join(map(str, one.shown)) for one in (plain, parts, words)]
    assert "of the first captions exceed 77 tokens" in shown[0]
    assert ["add --caption-parts sentences" in text for text in shown] == [True, False, True]
    assert ["further texts to encode" in text for text in shown] == [False, True, True]
    samples = itertools.chain(*(read_samples(one) for one in resolve_sources([str(shards)])))
    captions = [sample.caption for sample in itertools.islice(samples, 200)]
    captions = [caption for caption in captions if caption is not None]
    texts = {p for c in captions for p in parts_of(c, sentence_starts(c)) if p != c.strip()}
    assert parts.summary.further_texts == pytest.approx(len(texts) / len(captions), abs=0.1)
    assert words.summary.further_texts == pytest.approx(4, abs=0.1)
    for further in (parts, words):
        assert further.summary.samples_per_second < plain.summary.samples_per_second == 100


@pytest.fixture(scope="module")
def embedded(shards, tmp_path_factory):
    """Embeddings of one shard."""
    folder = tmp_path_factory.mktemp("embedded")
    options = {"caption_parts": None, "embeddings": str(folder / "embeddings")}
    score(shards / "00000.tar", folder / "s.parquet", **options)
    return folder / "embeddings"


def test_embeddings_have_no_tokens_and_no_parts(embedded, tmp_path, refused):
    settings = {"shards": [str(embedded)], "out": str(tmp_path / "s.parquet"), "shift": 0.2}
    refused(Score, **settings, options=ScoreOptions(caption_parts="sentences"))
    summary = Score(**settings).run().summary
    assert (summary.captions_cut, summary.context_length) == (None, None)
    table = pq.read_table(tmp_path / "s.parquet")
    assert table["caption_tokens"].null_count == len(table) > 40
    assert b"captions_cut" not in table.schema.metadata


@pytest.fixture(scope="module")
def cleaned(shards, tmp_path_factory, rough_shifts):
    out = tmp_path_factory.mktemp("cleaned") / "out"
    options = {"model": "demo", "precision": "fp32", "caption_parts": "sentences"}
    options["threshold"] = 0.4  # of pairs, and of sentences
    return ncclean.clean(str(shards), str(out), **options), out


def exported(folder):
    """The txt and the json of each exported sample."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, extension = member.name.partition(".")
                if extension in ("txt", "json"):
                    found.setdefault(key, {})[extension] = tar.extractfile(member).read()
    return {key: (one["txt"].decode(), json.loads(one["json"])) for key, one in found.items()}


def test_a_cleaned_corpus_has_mended_captions(cleaned, truth):
    """From end to end: what is kept lacks the wrong sentence, in every place of the caption."""
    result, out = cleaned
    by_key = {key: fields for (_, key), fields in truth.items()}
    selection = {row["key"]: row for row in pq.read_table(out / "clean.parquet").to_pylist()}
    samples = exported(out / "clean")
    assert samples.keys() == selection.keys()
    mended = [key for key, row in selection.items() if row["caption"] is not None]
    right = 0
    for key, (text, record) in samples.items():
        original = by_key[key]["caption"]
        if selection[key]["caption"] is None:
            assert text == record["caption"] == original
            assert "original_caption" not in record
            continue
        assert text == record["caption"] == selection[key]["caption"]
        assert record["original_caption"] == original
        assert len(text) < len(original)
        parts = parts_of(original, sentence_starts(original))
        part = by_key[key]["noisy_part"]
        is_right = part is not None and text == " ".join([*parts[:part], *parts[part + 1 :]])
        right += is_right
        assert record["original_is_noisy"] == by_key[key]["is_noisy"]
        assert record["original_noisy_part"] == part
        if is_right:
            assert (record["is_noisy"], record["noisy_part"]) == (False, None)
    assert right > 0.8 * len(mended) > 40
    selected = result.summary.records["select"].result
    assert selected["captions_mended"] == len(mended)
    shown = " ".join(map(str, result.shown))
    assert f"{len(mended):,} captions lost {selected['parts_dropped']:,} of" in shown
    # What is expected is of sentences: beside a noise rate of 0 they are not mismatched pairs.
    left = round(selected["expected_mismatched_kept"])
    assert f"about {left:,} pairs with a wrong caption or sentence left" in shown
    kinds = [by_key[key]["noise_kind"] for key in selection]
    assert kinds.count("ncr") < 6
    assert kinds.count("foreign_sentence") > 66


def test_the_threshold_of_clean_is_that_of_sentences_too(cleaned):
    policy = json.loads(pq.read_schema(cleaned[1] / "clean.parquet").metadata[b"policy"])
    assert (policy["threshold"], policy["part_threshold"]) == (0.4, 0.4)


def test_the_report_of_a_cleaned_corpus_strikes_sentences(cleaned):
    page = (cleaned[1] / "report.html").read_text()
    assert '<s title="probably wrong">' in page
    assert "Wrong sentence: matched, but for a sentence" in page
    assert "wrong sentences" in page
