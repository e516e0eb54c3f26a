"""Groups that have more wrong pairs are causes; those that are only read worse are not."""

import math

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.explain import Explain

import ncclean
from ncclean.base.estimates import Estimate
from ncclean.explaining.aggregates import STRATA, Totals
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.cause_table import read_causes
from ncclean.explaining.excluded import chosen
from ncclean.explaining.group_rate import BINS
from ncclean.explaining.kinds import TEXT, Kind
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.outcomes import outcomes_of
from ncclean.explaining.own_null import NOT_KNOWN, Verdict
from ncclean.explaining.pairs import Required, Values
from ncclean.explaining.verdicts import Verdicts, histograms

KIND = Kind("word", TEXT, "word", ("tokens",), str)
VALUES = Values(outcomes_of(["noise_probability", "near_miss_probability"]))


class Nulls:
    """Stands for the nulls of groups: what they say, and what they were asked."""

    def __init__(self, rate=0.3, outside=0.1, log_p=-30.0, separation=0.99):
        self.asked, self.without = [], []
        self.known = Verdict(
            Estimate(rate, rate - 0.05, rate + 0.05), Estimate(outside), log_p, separation
        )

    def verdict(self, *asked):
        self.asked.append(asked)
        return self.known

    def outside(self, without):
        self.without.append(without)
        return self.known.outside


def judged(nulls, outcome=0, rate=None, tested=100):
    candidates = [
        Candidate(KIND, "a", 0, Required((0,), (1.0,)), (0.0,), 9.0, 0.001),
        Candidate(KIND, "b", outcome, Required((0,), (1.0,)), (0.0,), 9.0, 0.001, rate),
    ]
    counts = [np.zeros((6, BINS)) for _ in VALUES.outcomes]
    for one in counts:
        one[5, BINS // 4] = 900
        one[:5, BINS // 4], one[:5, -9] = 50, 50
        one[5] += one[0] + one[4]
    totals = Totals(np.full(STRATA, 100.0), np.full((2, STRATA), 10.0), np.ones((2, STRATA)),
                    np.ones(2))  # fmt: skip
    return Verdicts(candidates, [3, 4], VALUES, totals, ExplainOptions(), tested, counts, nulls)


def test_a_group_is_a_cause_by_what_its_own_null_says():
    nulls = Nulls()
    verdicts = judged(nulls)
    assert verdicts.is_cause(1, [0])
    assert nulls.asked == [(4, TEXT, [3])]  # numbers of groups, not of candidates
    assert verdicts.rate(1, is_listed=True, is_cause=True) == nulls.known.rate
    assert verdicts.outside(1, [0, 1]) == nulls.known.outside
    assert nulls.without == [[3, 4]]


@pytest.mark.parametrize(
    ("nulls", "tested"),
    [
        (Nulls(rate=0.14), 100),  # less than `--min-excess` above
        (Nulls(log_p=math.log(1e-3)), 100),  # not sure enough of a hundred
        (Nulls(log_p=math.log(1e-6)), 10**6),
        (Nulls(rate=math.nan), 100),
    ],
)
def test_other_groups_are_not(nulls, tested):
    assert not judged(nulls, tested=tested).is_cause(1, ())


def test_a_verdict_beside_one_cause_is_not_that_beside_none():
    nulls = Nulls()
    verdicts = judged(nulls)
    assert verdicts.is_cause(1, [0])
    nulls.known = Nulls(rate=0.1).known
    assert not verdicts.is_cause(1, [])
    assert verdicts.is_cause(1, [0])  # asked once


def test_a_group_is_as_sure_as_the_weaker_of_its_tests():
    assert judged(Nulls(log_p=-80.0)).q_value(1, is_listed=True) == 0.001
    weak = judged(Nulls(log_p=math.log(1e-5))).q_value(1, is_listed=True)
    assert weak == pytest.approx(1e-5 * 100 * 5.19, rel=0.01)


def test_near_misses_count_where_the_estimator_tells_pairs_apart():
    assert judged(Nulls(rate=0.1), outcome=1).is_cause(1, ())
    verdicts = judged(Nulls(separation=0.9), outcome=1)
    assert not verdicts.is_cause(1, ())
    assert verdicts.outside(1, ()) is None
    assert verdicts.rate(1, is_listed=True, is_cause=False) is NOT_KNOWN
    rate = verdicts.rate(1, is_listed=True, is_cause=True)
    assert rate.low < 0.5 < rate.high
    assert verdicts.q_value(1, is_listed=True) == 0.001


def test_without_a_null_a_group_is_compared_with_the_pairs_outside(monkeypatch):
    asked = []
    monkeypatch.setattr("ncclean.explaining.verdicts.fits", lambda *of: bool(asked.append(of)))
    verdicts = judged(None)
    assert not verdicts.is_cause(1, ())
    ((own, outside, rate),) = asked
    assert (own == verdicts.counts[0][4]).all()
    assert (own + outside == verdicts.counts[0][5]).all()
    assert rate == pytest.approx(0.1)


def test_exchanged_words_have_the_rate_that_they_came_with():
    verdicts = judged(Nulls(), rate=Estimate(math.nan, 0.5, 1.0))
    assert verdicts.rate(1, is_listed=True, is_cause=True).low == 0.5


def test_histograms_are_of_groups_and_last_of_all_pairs():

    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE pairs AS SELECT range AS place, 0.5 AS v0, range / 100 AS v1 FROM range(100)"
    )
    connection.execute("CREATE TABLE members AS SELECT range AS place, 1 AS member FROM range(30)")
    first, second = histograms(connection, VALUES, 2)
    assert first.sum(axis=1).tolist() == [0, 30, 100]
    assert (first[2] > 0).sum() == 1
    assert (second[2] > 0).sum() > 10


def embedded(folder, seed=0, pairs=3000):
    """A corpus of embeddings, a tenth wrong: one language is read worse, one host is wrong.

    Captions of one length, most of them wrong, are a third group.
    """
    rng = np.random.default_rng(seed)
    concept = rng.normal(size=(pairs, 64))
    is_ja, is_broken, is_long = (rng.random(pairs) < share for share in (0.1, 0.06, 0.08))
    is_ja &= ~(is_broken | is_long)
    is_long &= ~is_broken
    words = np.array([f"w{letter}" for letter in "abcdefghiklmnopqrstuvwxyz"], object)
    texts = [
        " ".join(("j" if ja else "") + word for word in rng.choice(words, 16 if long else 6, False))
        for ja, long in zip(is_ja, is_long, strict=True)
    ]
    image = concept + 0.7 * rng.normal(size=concept.shape)
    text = concept + np.where(is_ja, 3.6, 0.7)[:, None] * rng.normal(size=concept.shape)
    wrong = rng.random(pairs) < np.where(is_broken, 1.0, np.where(is_long, 0.6, 0.1))
    for of in (is_broken, is_long, is_ja, ~(is_broken | is_long | is_ja)):
        rows = np.flatnonzero(of & wrong)
        text[rows] = text[np.roll(rows, 1)]
    for name, side in (("img_emb", image), ("text_emb", text)):
        (folder / "embeddings" / name).mkdir(parents=True)
        np.save(folder / "embeddings" / name / f"{name}_0.npy", side.astype(np.float32))
    (folder / "embeddings" / "metadata").mkdir()
    hosts = np.where(is_broken, "broken", [f"h{number % 9}" for number in range(pairs)])
    pq.write_table(
        pa.table({
            "uid": [f"{number:032x}" for number in range(pairs)],
            "shard": [f"{number // 500:05d}" for number in range(pairs)],
            "key": [f"{number:06d}" for number in range(pairs)],
            "caption": texts, "url": [f"https://{host}.example/i.jpg" for host in hosts],
        }),
        folder / "embeddings" / "metadata" / "metadata_0.parquet",
    )  # fmt: skip
    languages = pa.table({"uid": [f"{number:032x}" for number in range(pairs)],
                          "tongue": np.where(is_ja, "ja", "en").tolist()})  # fmt: skip
    pq.write_table(languages, folder / "languages.parquet")
    scores = str(folder / "scores.parquet")
    ncclean.score([str(folder / "embeddings")], out=scores)
    return scores, {name: wrong[of].mean() for name, of in
                    (("ja", is_ja), ("broken.example", is_broken), ("long", is_long))}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedded")
    return folder, *embedded(folder)


def explain(corpus, **options):
    folder, scores, _ = corpus
    return Explain(
        scores=[scores], out=str(folder / f"causes-{len(options)}.parquet"), overwrite=True,
        join=[str(folder / "languages.parquet")], options=ExplainOptions(by=["tongue"]), **options,
    ).run()  # fmt: skip


def test_with_embeddings_causes_are_told_from_what_is_only_read_worse(corpus):
    folder, _, truth = corpus
    done = explain(corpus, embeddings=[str(folder / "embeddings")])
    found = done.summary
    causes = {cause.label: cause for cause in found.causes}
    assert set(causes) == {"broken.example", "13 to 20 words"}
    for label, name in (("broken.example", "broken.example"), ("13 to 20 words", "long")):
        assert causes[label].rate.low <= truth[name] <= causes[label].rate.high
        assert causes[label].outside.low <= 0.1 <= causes[label].outside.high
        assert causes[label].rate.value - causes[label].outside.value >= 0.05
    (apart,) = found.uncertain
    assert (apart.kind, apart.label) == ("tongue", "ja")
    assert apart.rate.low <= truth["ja"] <= apart.rate.high < 0.5
    assert math.isnan(apart.excess)
    assert not [one for one in found.folded if one.folded_into == 3 and one.rate.is_known]
    text = "\n".join(map(str, done.shown))
    assert "1 group of pairs looks wrong more often" in text
    assert "score with --embeddings" not in text
    read = read_causes(found.out)
    assert [one.to_json() for one in read[:3]] == [
        one.to_json() for one in (*found.causes, *found.uncertain)
    ]
    assert [one.label for one in chosen(read, found.out)] == list(causes)
    assert [one.label for one in chosen(read, found.out, [3])] == ["ja"]


def test_without_them_a_group_that_could_be_either_is_listed_apart(corpus):
    done = explain(corpus)
    found = done.summary
    assert {cause.label for cause in found.causes} == {"broken.example", "13 to 20 words"}
    (apart,) = found.uncertain
    assert (apart.kind, apart.label, apart.is_rate_known) == ("tongue", "ja", False)
    assert found.to_json()["uncertain"][0]["rate"] is None
    text = "\n".join(map(str, done.shown))
    assert "score with --embeddings" in text
    assert "not known" in text
