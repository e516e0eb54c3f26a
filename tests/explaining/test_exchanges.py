"""Words that stand for each other: found by what all their pairs tell, and only then."""

import re
from functools import partial

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.select import Select
from scipy.sparse import csr_matrix

import ncclean
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.errors import InputError
from ncclean.explaining import explain_scores
from ncclean.explaining.exchanges import Exchanges, _significant, _Statistics, _statistics
from ncclean.explaining.options import ExplainOptions
from ncclean.selection.policy import Policy

WORDS = [f"w{number}" for number in range(14)]


def corpus(seed, told=1.0, pairs=4000, exchanged=(), part=1.0):
    """(N, W) words and (N, d) vectors; images tell the words by `told` of the noise.

    Of the captions with an exchanged word, `part` have the other.
    """
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((len(WORDS), 32))
    in_image = rng.random((pairs, len(WORDS))) < 0.2
    in_caption = in_image.copy()
    for a, b in exchanged:
        rows = rng.random(pairs) < part
        in_caption[np.ix_(rows, [a, b])] = in_image[np.ix_(rows, [b, a])]
    image = told * in_image @ directions + 8 * rng.standard_normal((pairs, 32))
    text = in_caption @ directions + rng.standard_normal((pairs, 32))
    return csr_matrix(in_caption.astype(np.float32)), image, text


def found(*arrays):
    return {frozenset(pair) for pair in _significant(WORDS, _statistics(*arrays, 50), 0.05).words}


def test_exchanges_are_found_and_nothing_else():
    """All but a few: by chance one of two words may seem to be wrong alone."""
    both = {frozenset(("w1", "w5")), frozenset(("w8", "w2"))}
    missed = 0
    for seed in range(20):
        reported = found(*corpus(seed, exchanged=[(1, 5), (8, 2)]))
        assert reported <= both
        missed += len(both - reported)
        assert found(*corpus(seed)) == set()
    assert missed <= 2


def test_a_part_of_the_captions_is_no_exchange():
    assert found(*corpus(0, exchanged=[(1, 5)], part=0.4)) == set()
    assert found(*corpus(0, exchanged=[(1, 5)], part=0.9)) == {frozenset(("w1", "w5"))}


def test_most_captions_of_both_words_are_wrong():
    """All with one word and a seventh of those with the other are less than half of both."""
    for seed in range(20):
        words, image, text = corpus(seed, told=4.0)
        members = words.toarray()
        is_wrong = np.random.default_rng(seed).random(len(members)) < 0.15
        moved = members.copy()
        moved[:, 5] = is_wrong & (members[:, 1] == 1)
        moved[is_wrong, 1] = members[is_wrong, 5]
        directions = np.random.default_rng(seed).standard_normal((len(WORDS), 32))
        text = text + (moved - members) @ directions
        assert found(csr_matrix(moved), image, text) == set()


def test_many_exchanges_do_not_hide_one_another():
    pairs = [(0, 1), (2, 3), (4, 5)]
    expected = {frozenset((WORDS[a], WORDS[b])) for a, b in pairs}
    reported = [found(*corpus(seed, told=2.0, exchanged=pairs)) for seed in range(10)]
    assert reported == [expected] * 10


def test_a_circle_of_three_words_is_rarely_an_exchange():
    """Captions with one of three have the next instead: no two stand for each other."""
    false = 0
    for seed in range(20):
        words, image, text = corpus(seed, told=2.0)
        moved = words.toarray()
        moved[:, [4, 9, 2]] = moved[:, [2, 4, 9]]
        directions = np.random.default_rng(seed).standard_normal((len(WORDS), 32))
        text = text + (moved - words.toarray()) @ directions
        false += bool(found(csr_matrix(moved), image, text))
    assert false <= 6


def test_hosts_with_a_style_and_a_phrase_of_their_own_are_no_exchange():
    """What style their images have need not fit what their captions repeat."""
    for seed in range(20):
        words, image, text = corpus(seed, told=2.0)
        rng = np.random.default_rng(seed)
        members = words.toarray()
        members[:, 13] = 0
        members[:600, 13] = 1
        image[:600] += 12 * rng.standard_normal(32)
        text[:600] += 4 * rng.standard_normal(32)
        assert found(csr_matrix(members), image, text) == set()


def test_an_image_that_is_repeated_counts_once():
    """Two hosts have one image each for 400 captions, which tell nothing of it."""
    for seed in range(20):
        words, image, text = corpus(seed, told=2.0)
        members = words.toarray()
        members[:, 12:] = 0
        for word, rows in ((12, slice(0, 400)), (13, slice(400, 800))):
            members[rows] = 0
            members[rows, word] = 1
            image[rows] = image[rows.start]
            text[rows] = text[rows.start]
        assert found(csr_matrix(members), image, text) == set()


def test_an_estimator_that_tells_no_words_finds_nothing():
    """Images of a word differ from others, but not as the captions do; a few look as if."""
    false = 0
    for seed in range(40):
        words, _, text = corpus(seed, exchanged=[(1, 5)])
        elsewhere = np.random.default_rng(100 + seed).standard_normal((32, 32)) / 4
        false += bool(found(words, text @ elsewhere, text))
    assert false <= 2


def test_few_words_tell_nothing_of_one_another():
    words, image, text = corpus(0, exchanged=[(1, 5)])
    assert found(words[:, [1, 5, 7]], image, text) == set()


def test_the_kind_quotes_what_words_it_has():
    kind = Exchanges((("l'eau", "feu"),)).kind
    tokens = "SELECT ['l''eau'] AS tokens UNION ALL SELECT ['feu', 'l''eau'] UNION ALL SELECT []"
    rows = duckdb.execute(f"SELECT {kind.value} FROM ({tokens})").fetchall()
    assert rows == [(["l'eau feu"],), ([None],), ([None],)]


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    """A rendered corpus in which red is blue and blue red; its scores and embeddings."""
    from tests.hostile import tar_bytes

    folder = tmp_path_factory.mktemp("exchanged")
    write_corpus(folder / "plain", CorpusOptions(pairs=1500, duplicates=0, seed=6), 1)
    other = {"red": "blue", "blue": "red"}
    members = []
    for shard in resolve_pairs([str(folder / "plain")]):
        for sample in read_samples(shard):
            caption = re.sub("red|blue", lambda found: other[found[0]], sample.caption.lower())
            members.append((f"{sample.key}.jpg", sample.image))
            members.append((f"{sample.key}.txt", caption.encode()))
    (folder / "00000.tar").write_bytes(tar_bytes(members))
    scores, embeddings = str(folder / "scores.parquet"), str(folder / "embeddings")
    ncclean.score(
        [str(folder / "00000.tar")], out=scores, model="demo", precision="fp32",
        embeddings=embeddings, shift=0.2,
    )  # fmt: skip
    return folder, scores, embeddings


def test_exchanged_words_are_a_cause(exchanged, monkeypatch):
    folder, scores, embeddings = exchanged
    out = str(folder / "causes.parquet")
    compared = []

    def counted(compare, *given):
        compared.append(compare(*given))
        return compared[-1]

    for name in ("find_exchanges", "candidates_of"):
        monkeypatch.setattr(explain_scores, name, partial(counted, getattr(explain_scores, name)))
    explained = Explain(scores=[scores], out=out, embeddings=[embeddings]).run().summary
    assert explained.tested == sum(one.tested for one in compared)  # pairs of words, and groups
    assert all(one.tested for one in compared)
    (cause,) = explained.causes
    assert (cause.kind, cause.label) == ("exchanged words", "“blue” and “red”")
    assert not cause.rate.is_known
    assert (cause.rate.low, cause.rate.high) == (0.5, 1.0)
    assert cause.outcome == "near miss"
    assert not cause.outside.is_known  # the table tells no near misses
    assert cause.excess == pytest.approx(cause.pairs * 0.5)
    assert cause.proposal == "“blue” and “red” stand for each other"
    assert cause.examples
    assert all(("red" in e.caption) != ("blue" in e.caption) for e in cause.examples)
    there = duckdb.execute(
        f"SELECT count(*) FROM (SELECT regexp_extract_all(lower(text), '[a-z]+') AS words "
        f"FROM '{scores}') WHERE ('red' IN words) != ('blue' IN words)"
    ).fetchall()
    assert there == [(cause.pairs,)]
    selected = Select(
        scores=[scores], out=str(folder / "s.parquet"), policy=Policy(where="true"),
        exclude_causes=out,
    ).run().summary  # fmt: skip
    assert selected.dropped == cause.pairs


def test_images_that_are_there_ten_times_tell_no_more_than_once():
    words, image, text = corpus(3, exchanged=[(1, 5)], pairs=1500)
    once = _statistics(words, image, text, 50)
    several = np.tile(np.arange(len(image)), 10)
    again = _statistics(words[several], image[several], text[several], 50)
    assert again.z == pytest.approx(once.z, rel=1e-3, abs=1e-3)


def test_an_exchange_is_low_for_what_the_other_words_show():
    """Where their z scatter by more than their error, one of -5 is nothing special."""
    words = [f"w{number}" for number in range(30)]
    first, second = np.triu_indices(30, 1)
    is_exchange = (first == 0) & (second == 1)
    share = np.where(is_exchange, 0.5, 0.0)
    for scatter, expected in ((1.5, (("w0", "w1"),)), (3.0, ())):
        z = np.random.default_rng(0).normal(4.0, scatter, len(first)).clip(-4.9)
        z[is_exchange] = -5.0
        assert _significant(words, _Statistics(first, second, z, share), 0.05).words == expected


def test_clusters_change_with_the_causes_that_name_them_or_not_at_all(
    exchanged, tmp_path, monkeypatch
):
    _, scores, embeddings = exchanged
    out, clusters = tmp_path / "causes.parquet", tmp_path / "causes.clusters.parquet"
    options = {"scores": [scores], "out": str(out), "embeddings": [embeddings]}
    Explain(**options).run()
    before = out.read_bytes(), clusters.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ncclean.explaining.explain_scores.find_exchanges", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Explain(**options, options=ExplainOptions(clusters=7)).run()
    assert (out.read_bytes(), clusters.read_bytes()) == before
    Explain(**options, options=ExplainOptions(clusters=7)).run()
    assert len(pq.read_table(clusters)["cluster"].unique()) == 7

    clusters.write_bytes(b"of somebody else")
    with pytest.raises(InputError, match=r"causes\.clusters\.parquet is in the way"):
        Explain(**options).run()
