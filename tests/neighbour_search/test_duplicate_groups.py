import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.neighbour_search import duplicate_groups
from ncclean.neighbour_search.chunked import DisjointSets
from ncclean.neighbour_search.duplicate_groups import (
    Candidates,
    FirstPairs,
    Leaders,
    SpanningForest,
    join_single_rows,
    ranks,
    spanning,
)
from tests.neighbour_search.simulated import clustered

ARC = np.radians([0, 10, 20, 90])  # a is near b, b is near c, a is not near c
CHAIN = np.stack([np.cos(ARC), np.sin(ARC)], axis=1).astype(np.float32)
NEAR = float(np.cos(np.radians(12)))


def near_pairs(vectors, threshold, rows=None, members=None):
    """All pairs of near-duplicates, the later row first; of some rows with some others."""
    vectors = vectors.astype(np.float32)
    cosines = vectors @ vectors.T
    later, earlier = np.nonzero(np.tril(cosines >= threshold, -1))
    chosen = np.ones(len(later), bool)
    if rows is not None:
        chosen = rows[later] & members[earlier]
    later, earlier = later[chosen].astype(np.int32), earlier[chosen].astype(np.int32)
    return Candidates(later, earlier, cosines[later, earlier])


def grouped(vectors, threshold, keep=32):
    count = len(vectors)
    leaders = Leaders({name: np.zeros(*shape) for name, shape in Leaders.shapes(count).items()})

    def decide(asked=()):
        pairs, cut = found(False, *asked)
        for rows in (slice(0, count // 2), slice(count // 2, count)):
            here = (pairs.queries >= rows.start) & (pairs.queries < rows.stop)
            cut_here = cut[(cut >= rows.start) & (cut < rows.stop)]
            leaders.decide(rows, pairs.at(np.flatnonzero(here)), cut_here)

    def found(by_similarity, *asked):
        pairs = FirstPairs(1 if by_similarity else keep, by_similarity)
        pairs.add(near_pairs(vectors, threshold, *asked))
        return pairs.result(), pairs.cut()

    decide()
    rounds = 1
    while leaders.search():
        decide((leaders.queries, leaders.members))
        rounds += 1
        assert rounds < 100
    if leaders.search_nearest():
        leaders.move(found(True, leaders.queries, leaders.members)[0])
    return leaders.representative


def components(count, later, earlier):
    sets = DisjointSets(first := np.zeros(count, np.int32))
    sets.join(later, earlier)
    sets.finish()
    return first


def one_by_one(vectors, threshold):
    """What groups are: each row joins the most similar representative before it."""
    vectors = vectors.astype(np.float32)
    cosines = vectors @ vectors.T
    representative = np.arange(len(vectors))
    for row in range(len(vectors)):
        before = [r for r in range(row) if representative[r] == r and cosines[row, r] >= threshold]
        if before:
            representative[row] = max(before, key=lambda r: cosines[row, r])
    return representative


def test_a_chain_is_not_one_group():
    # c is 20 degrees from a and b belongs to a already, so c stands for itself.
    assert grouped(CHAIN, NEAR).tolist() == [0, 0, 2, 3]


def test_components_chain():
    pairs = near_pairs(CHAIN, NEAR)
    assert components(4, pairs.queries, pairs.ids).tolist() == [0, 0, 0, 3]


def test_a_row_joins_the_most_similar_representative():
    angles = np.radians([0, 20, 11])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert grouped(vectors, NEAR).tolist() == [0, 1, 1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0.5, 0.95), st.integers(1, 40))
def test_groups_are_those_of_one_row_at_a_time_however_few_pairs_are_kept(seed, threshold, keep):
    vectors = clustered(80, 8, seed, clusters=10)
    expected = one_by_one(vectors, threshold)
    np.testing.assert_array_equal(grouped(vectors, threshold, keep), expected)


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(2, 40))
def test_pairs_that_span_connect_the_same_rows(seed, count):
    rng = np.random.default_rng(seed)
    later, earlier = rng.integers(0, 40, (2, count)).astype(np.int32)
    pairs = Candidates(later, earlier, np.ones(count, np.float32))
    expected = components(40, later, earlier)
    for some in (spanning(pairs), gathered(pairs)):
        np.testing.assert_array_equal(components(40, some.queries, some.ids), expected)
        assert len(some) <= 40


def gathered(pairs):
    spans = SpanningForest()
    for part in np.array_split(np.arange(len(pairs)), 4):
        spans.add(pairs.at(part))
    assert len(spans.cut()) == 0
    return spans.result()


def test_pairs_beyond_those_kept_are_told(monkeypatch):
    monkeypatch.setattr(duplicate_groups.FirstPairs, "buffered", 3)
    pairs = FirstPairs(2, by_similarity=False)
    for earlier in (5, 1, 4, 0, 3):
        one = np.array([9, 7], np.int32), np.array([earlier, 6], np.int32)
        count = 2 if earlier == 1 else 1
        pairs.add(Candidates(*(part[:count] for part in one), np.ones(count, np.float32)))
        assert sum(map(len, pairs._held)) <= 4
    scratch = pairs.result()
    assert scratch.queries.tolist() == [7, 9, 9]
    assert scratch.ids.tolist() == [6, 0, 1]
    assert pairs.cut().tolist() == [9]


def test_single_rows_join_an_earlier_representative_of_another_space():
    def joined(representative, queries, near):
        representative = np.array(representative)
        sizes = np.bincount(representative, minlength=len(representative))
        join_single_rows(representative, sizes, np.array(queries), [np.array(ids) for ids in near])
        return representative.tolist()

    # Row 1 joins 0; row 2's neighbour 1 stands for nobody then; 4 joins 3.
    assert joined([0, 1, 2, 3, 4], [1, 2, 4], [[0], [1], [3]]) == [0, 0, 2, 3, 3]
    # Members of groups stay where they are.
    assert joined([0, 1, 1, 3, 3], [1, 2, 4], [[0], [1], [3]]) == [0, 1, 1, 3, 3]
    # The first of the neighbours that stands for a group, and is before the row.
    assert joined([0, 1, 2], [1], [[2, 0]]) == [0, 0, 2]


def test_ranks():
    assert ranks(np.array([1, 1, 4, 4, 4])).tolist() == [0, 1, 0, 1, 2]
    assert ranks(np.array([], np.int32)).tolist() == []


def test_a_row_is_compared_again_while_one_that_is_near_it_is_open():
    """Row 2 may come to be a representative that is nearer to row 3 than row 0 is."""
    leaders = Leaders({name: np.zeros(*shape) for name, shape in Leaders.shapes(4).items()})
    pairs = Candidates(
        np.array([1, 2, 3, 3], np.int32),
        np.array([0, 1, 0, 2], np.int32),
        np.array([0.9, 0.9, 0.8, 0.95], np.float32),
    )
    leaders.decide(slice(0, 4), pairs, cut=np.array([2]))
    assert leaders.representative.tolist() == [0, 0, 2, 0]
    assert leaders.search()
    assert leaders.queries.tolist() == [False, False, True, False]
    assert leaders.search_nearest()
    assert leaders.queries.tolist() == [False, False, False, True]
