"""A group's share of wrong pairs by its own mismatches, whatever the estimator makes of it."""

from types import SimpleNamespace

import duckdb
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ncclean.explaining import own_null
from ncclean.explaining.kinds import IMAGE, PAIR, TEXT
from ncclean.explaining.own_null import OwnNulls

PAIRS, DIM, GROUP = 1800, 96, 400


def vectors(noise=0.8, of_group=0.8, share=0.1, in_group=None, topic=0.0, seed=0, within=False):
    """Unit vectors of images and captions, and which pairs are wrong; the first are the group.

    `noise` is that of both vectors, `of_group` that of the group's captions; `share` of the pairs
    are wrong, `in_group` of those of the group. `within` exchanges captions in the group alone.
    The group's concepts lie around one of length `topic`.
    """
    rng = np.random.default_rng(seed)
    inside = np.arange(PAIRS) < GROUP
    concept = rng.normal(size=(PAIRS, DIM))
    concept[inside] += topic * np.sqrt(DIM) * np.eye(DIM)[0]
    scale = np.where(inside, of_group, noise)[:, None]
    image = concept + noise * rng.normal(size=(PAIRS, DIM))
    text = concept + scale * rng.normal(size=(PAIRS, DIM))
    wrong = rng.random(PAIRS) < np.where(inside, share if in_group is None else in_group, share)
    pools = [np.flatnonzero(wrong & inside), np.flatnonzero(wrong & ~inside)]
    for rows in pools if within else [np.concatenate(pools)]:
        rows = rng.permutation(rows)
        text[rows] = text[np.roll(rows, 1)]
    return _unit(image), _unit(text), wrong


def _unit(side):
    return (side / np.linalg.norm(side, axis=1, keepdims=True)).astype(np.float32)


def nulls(image, text, *, captions=None, photographs=None, groups=1):
    members = np.zeros((PAIRS, groups), bool)
    members[:GROUP, 0] = True
    every = np.arange(PAIRS)
    return OwnNulls(
        image, text, csr_matrix(members), np.ones(PAIRS, bool),
        every if photographs is None else photographs, every if captions is None else captions,
    )  # fmt: skip


def test_a_worse_estimator_is_not_noise():
    for of_group in (1.6, 2.4, 3.2):
        image, text, wrong = vectors(of_group=of_group)
        verdict = nulls(image, text).verdict(0, TEXT, ())
        assert verdict.rate.low <= wrong[:GROUP].mean() <= verdict.rate.high
        assert verdict.log_p > np.log(1e-3)
        assert verdict.outside.value == pytest.approx(0.1, abs=0.04)


@pytest.mark.parametrize("made_of", [TEXT, IMAGE, PAIR])
def test_more_wrong_pairs_are(made_of):
    image, text, wrong = vectors(in_group=0.4, within=True)
    verdict = nulls(image, text).verdict(0, made_of, ())
    assert verdict.rate.value == pytest.approx(wrong[:GROUP].mean(), abs=0.05)
    assert verdict.rate.low <= wrong[:GROUP].mean() <= verdict.rate.high
    assert verdict.log_p < np.log(1e-8)
    assert verdict.separation > 0.95


def test_a_group_that_is_wrong_throughout():
    image, text, _ = vectors(in_group=1.0, within=True)
    verdict = nulls(image, text).verdict(0, PAIR, ())
    assert verdict.rate.low > 0.7
    assert verdict.rate.high == 1
    assert verdict.log_p < np.log(1e-8)


def test_an_estimator_that_reads_next_to_nothing_is_not_called_wrong_throughout():
    """Its pairs are a little above mismatches: their share may be 0."""
    for of_group in (8.0, 12.0, 20.0, 30.0):
        image, text, _ = vectors(of_group=of_group, share=0.0)
        verdict = nulls(image, text).verdict(0, TEXT, ())
        assert verdict.rate.low == 0
        assert verdict.log_p > np.log(1e-2)
        assert verdict.separation < 0.9


def test_what_looks_wrong_throughout_is_like_mismatches_at_both_ends():
    rng = np.random.default_rng(0)
    null = np.sort(rng.normal(size=100_000))
    wrong = own_null._all_wrong(rng.normal(size=400), null)
    assert wrong.low > 0.75
    assert wrong.value > 0.95
    assert own_null._all_wrong(rng.normal(0.3, size=400), null) is None
    # As many above the median as below, but not where mismatches are.
    assert own_null._all_wrong(rng.normal(0, 0.2, size=400), null) is None
    assert own_null._all_wrong(np.append(rng.normal(size=850), np.full(150, 9.0)), null) is None
    # Some are right without doubt, and the others as mismatches are.
    few = own_null._all_wrong(np.append(rng.normal(size=985), np.full(15, 9.0)), null)
    assert few.low < 0.97 <= few.value <= 1


def test_captions_of_another_topic_do_not_make_a_group_look_wrong():
    """They fit its images worse than its own mismatches do, which makes them count for more."""
    image, text, wrong = vectors(topic=1.0, noise=2.0, of_group=2.0, share=0.2)
    here = nulls(image, text)
    own = here._fit(np.arange(GROUP), np.arange(GROUP), np.arange(GROUP)).rate
    assert own.value > wrong[:GROUP].mean() + 0.04
    for made_of in (TEXT, IMAGE, PAIR):
        verdict = here.verdict(0, made_of, ())
        assert verdict.rate.low <= wrong[:GROUP].mean() <= verdict.rate.high == own.high
        assert verdict.rate.value < own.value
        assert verdict.log_p > np.log(1e-3)


def _side(rows):
    """Whether rows are of the group, of others, or of both."""
    return {(True, True): "in", (False, False): "out"}.get(
        (rows.min() < GROUP, rows.max() < GROUP), "both"
    )


def test_a_group_of_captions_is_compared_with_images_outside_and_one_of_images_with_captions():
    image, text, _ = vectors()
    calls = []

    class Recorded(OwnNulls):
        def _fit(self, rows, images, texts):
            calls.append(tuple(_side(rows) for rows in (images, texts)))
            return super()._fit(rows, images, texts)

    here = Recorded(**{k: getattr(nulls(image, text), k) for k in (
        "image", "text", "members", "is_outside", "photographs", "captions")})  # fmt: skip
    for made_of, sides in (
        (TEXT, {("in", "in"), ("out", "in")}),
        (IMAGE, {("in", "in"), ("in", "out")}),
        (PAIR, {("in", "in"), ("in", "out"), ("out", "in")}),
    ):
        calls.clear()
        here.verdict(0, made_of, ())
        assert set(calls) - {("out", "out")} == sides


def test_equal_captions_and_one_photograph_are_no_mismatches():
    """As five captions of a photograph, or the name of a class."""
    image, text, _ = vectors(share=0.0)
    image[:GROUP], text[:GROUP] = image[0], text[0]
    same = np.where(np.arange(PAIRS) < GROUP, 0, np.arange(PAIRS))
    rows = np.arange(GROUP)
    assert nulls(image, text, captions=same)._fit(rows, rows, rows) is None
    assert nulls(image, text, photographs=same)._fit(rows, rows, rows) is None
    assert nulls(image, text)._fit(rows, rows, rows) is not None
    assert nulls(image, text, captions=same).verdict(0, TEXT, ()).rate.high < 0.1


def test_pairs_of_causes_are_left_out_of_a_group_and_of_what_is_outside():
    image, text, _ = vectors(in_group=0.6, within=True)
    here = nulls(image, text, groups=2)
    members = here.members.toarray()
    members[: GROUP + 400, 1] = True
    members[:60, 1] = False
    here = OwnNulls(image, text, csr_matrix(members), here.is_outside, here.photographs,
                    here.captions)  # fmt: skip
    assert here.verdict(0, PAIR, ()).log_p < np.log(1e-8)
    seen = []
    kept = here._fit
    object.__setattr__(here, "_fit", lambda *rows: seen.append(rows) or kept(*rows))
    here.verdict(0, PAIR, [1])
    for rows in seen:
        assert not np.isin(np.concatenate(rows), np.arange(60, GROUP + 400)).any()


def test_few_pairs_tell_nothing():
    image, text, _ = vectors()
    here = nulls(image, text)
    members = here.members.toarray()
    members[30:] = False
    few = OwnNulls(image, text, csr_matrix(members), here.is_outside, here.photographs,
                   here.captions)  # fmt: skip
    verdict = few.verdict(0, TEXT, ())
    assert (verdict.rate.low, verdict.rate.high, verdict.log_p) == (0, 1, 0)
    assert not verdict.rate.is_known


def test_places_are_taken_from_all_of_the_corpus():
    places = own_null._some(np.ones(10 * own_null._MOST, bool))
    assert len(places) == own_null._MOST
    assert places[-1] > 9 * own_null._MOST


def test_deviations_by_hand():
    here, there = own_null.Estimate(0.5, 0.402, 0.9), own_null.Estimate(0.1, 0.0, 0.1)
    assert own_null._deviations(here, there) == pytest.approx(0.4 / 0.05, rel=1e-3)
    there = own_null.Estimate(0.1, 0.0, 0.198)
    assert own_null._deviations(here, there) == pytest.approx(0.4 / 0.05 / np.sqrt(2), rel=1e-3)


def test_vectors_are_read_for_groups_and_for_a_sample_of_all(monkeypatch, tmp_path):
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE pairs AS SELECT range AS place, 's' AS shard, (range // 2)::VARCHAR AS key, "
        "(range % 2)::SMALLINT AS caption_number FROM range(2000)"
    )
    connection.execute(
        "CREATE TABLE members AS SELECT range AS place, 0 AS member FROM range(300) "
        "UNION ALL SELECT range * 2, 1 FROM range(50)"
    )

    def read(connection, wanted):
        rows = connection.execute(f"SELECT place FROM ({wanted}) ORDER BY place").fetchnumpy()
        places = rows["place"][rows["place"] != 4]  # one has no vectors
        image = np.column_stack([places, places]).astype(np.float16)
        return {0: (places, image, np.column_stack([places % 3, places % 3]))}

    corpus = SimpleNamespace(vectors=read)
    monkeypatch.setattr(own_null, "_OUTSIDE", 500)
    monkeypatch.setattr(own_null, "_MOST", 100)
    here = OwnNulls.read(connection, 2, corpus)
    places = here.image[:, 0].astype(int)
    assert 4 not in places
    assert here.is_outside.sum() in (499, 500)
    in_first, in_second = here.of([0]), here.of([1])
    assert (places[in_first] < 300).all()
    assert in_first.sum() >= 99
    assert set(places[in_second]) == set(range(0, 100, 2)) - {4}
    assert len(set(here.captions)) == 3
    pairs_of = dict(zip(places, here.photographs, strict=True))
    assert all(pairs_of[p] == pairs_of[p + 1] for p in pairs_of if p % 2 == 0 and p + 1 in pairs_of)
    connection.execute("ALTER TABLE pairs DROP key")
    assert OwnNulls.read(connection, 2, corpus) is None
