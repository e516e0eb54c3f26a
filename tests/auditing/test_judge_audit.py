"""How good a judge is, by hand, and how many answers an interval takes."""

import numpy as np
import pytest

from ncclean.auditing.answers import Answered
from ncclean.auditing.intervals import Cells, mismatched_share
from ncclean.auditing.judge_audit import answers_needed, audit_judge


def cells(pairs, judge, answers, mismatched):
    """One stratum; counts by the judge's answer."""
    counts = (np.array([[part]], float) for part in (answers, mismatched, judge))
    return Cells(np.array([[pairs]], float), *counts)


def audited(made):
    noise = mismatched_share(made)[0]
    said = np.repeat(np.arange(3), made.answers[0, 0].astype(int))
    people = Answered(1, np.zeros(len(said), int), np.zeros(len(said)), said, False)
    return noise, audit_judge("a judge", people, made, noise, 10_000, 10_000)


def test_the_confusion_of_a_judge_by_hand():
    """700, 200 and 100 of 1,000 by the judge; people's pairs stand for these shares."""
    made = cells(1e6, (700, 200, 100), (70, 40, 10), (7, 30, 5))
    judge = audited(made)[1]
    mismatched = {"match": 0.7 * 0.1, "mismatch": 0.2 * 0.75, "neither": 0.1 * 0.5}
    matched = {"match": 0.7 * 0.9, "mismatch": 0.2 * 0.25, "neither": 0.1 * 0.5}
    for truth, shares in (("mismatch", mismatched), ("match", matched)):
        for answer, share in shares.items():
            estimate = judge.confusion[truth][answer]
            assert estimate.value == pytest.approx(share / sum(shares.values()))
            assert estimate.low < estimate.value < estimate.high
    right = 0.7 * 0.9 + 0.2 * 0.75
    assert judge.agreement.value == pytest.approx(right / 0.9)  # of those it decided
    assert judge.to_json()["confusion"]["match"]["neither_low"] < 0.1


def test_a_judge_who_always_decides_has_no_column_for_neither():
    judge = audited(cells(1e6, (800, 200, 0), (120, 30, 0), (3, 27, 0)))[1]
    assert set(judge.confusion["match"]) == {"match", "mismatch"}


def test_four_times_the_answers_halve_an_interval():
    made = cells(1e9, (8_000, 2_000, 0), (240, 60, 0), (24, 36, 0))
    alone = made.without_judge()
    noise = mismatched_share(alone)[0]
    needed = answers_needed(alone, noise, (noise.high - noise.low) / 2, None)
    assert needed.alone == pytest.approx(1_200, rel=0.02)
    assert needed.with_judge is None


def test_no_more_answers_are_asked_for_than_there_are_pairs():
    alone = cells(500, (400, 100, 0), (80, 20, 0), (8, 12, 0)).without_judge()
    noise = mismatched_share(alone)[0]
    assert 400 < answers_needed(alone, noise, 0.01, None).alone <= 500


@pytest.mark.parametrize("width", [0.05, 0.1])
def test_where_every_pair_is_judged_some_of_the_answers_would_have_done(width):
    """The interval has no width, which is no reason to need no answers."""
    whole = cells(1_000, (800, 200, 0), (800, 200, 0), (80, 120, 0)).without_judge()
    noise = mismatched_share(whole)[0]
    assert noise.low == pytest.approx(noise.high) == 0.2
    needed = answers_needed(whole, noise, width, None).alone
    some = Cells(*(np.array([[n]], float) for n in (1_000, needed, round(0.2 * needed))))
    low, high = mismatched_share(some)[0][1:]
    assert high - low == pytest.approx(width, rel=0.2)
    one = Cells(*(np.array([[n]], float) for n in (1, 1, 0)))
    assert answers_needed(one, mismatched_share(one)[0], width, None).alone == 1


def test_with_a_good_judge_fewer_people_do_and_more_of_the_judge_may_be_needed():
    made = cells(1e9, (4_000, 1_000, 0), (120, 30, 0), (2, 28, 0))
    noise, judge = audited(made)
    assert judge.helps
    needed = answers_needed(made, noise, 0.04, judge)
    assert needed.of_judge is None
    assert needed.with_judge < 0.5 * needed.alone
    narrow = answers_needed(made, noise, 0.01, judge)
    assert narrow.of_judge > 5_000
    assert narrow.with_judge < 0.5 * narrow.alone


def test_an_audit_without_a_mismatch_asks_for_answers_by_the_rule_of_three():
    made = cells(1e9, (5_000, 0, 0), (150, 0, 0), (0, 0, 0)).without_judge()
    noise = mismatched_share(made)[0]
    assert answers_needed(made, noise, noise.high / 3, None).alone == pytest.approx(450, abs=2)


@pytest.mark.parametrize(("answers", "mismatched"), [(1, 0), (3, 0), (2, 2), (40, 0)])
def test_answers_that_agree_tell_a_least_number(answers, mismatched):
    """It is the number that has the width if all of them agree."""
    few = Cells(*(np.array([[n]], float) for n in (1e6, answers, mismatched)))
    needed = answers_needed(few, mismatched_share(few)[0], 0.02, None)
    assert needed.at_least
    grown = mismatched * needed.alone / answers
    some = Cells(*(np.array([[n]], float) for n in (1e6, needed.alone, grown)))
    _, low, high = mismatched_share(some)[0]
    assert high - low == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    ("pairs", "answers"), [((2, 109), (2, 2)), ((111, 149), (1, 0)), ((114, 198, 180), (3, 1, 2))]
)
@pytest.mark.parametrize("share", [0, 1])
def test_few_pairs_take_no_more_answers_than_there_are_and_no_fewer_than_were_given(
    pairs, answers, share
):
    size, given = (np.array(one, float)[:, None] for one in (pairs, answers))
    few = Cells(size, given, given * share)
    needed = answers_needed(few, mismatched_share(few)[0], 0.02, None)
    assert given.sum() < needed.alone <= size.sum()


def test_answers_that_differ_tell_about_how_many():
    few = cells(1e6, (800, 200, 0), (20, 10, 0), (2, 5, 0)).without_judge()
    assert not answers_needed(few, mismatched_share(few)[0], 0.02, None).at_least


def test_the_numbers_are_those_that_an_audit_of_that_size_has():
    """Answers drawn anew: at the number that is asked for, the interval has the width."""
    rng = np.random.default_rng(2)
    y = rng.random(200_000) < 0.2
    said = (y ^ (rng.random(200_000) < 0.05)).astype(int)

    def audit(people, judged=5_000):
        order = rng.permutation(200_000)[:judged]
        mine = order[:people]
        rows = [np.bincount(said[m], minlength=3) for m in (order, mine, mine[y[mine]])]
        return cells(200_000, rows[0], rows[1], rows[2])

    first = audit(150)
    noise, judge = audited(first)
    needed = answers_needed(first, noise, 0.045, judge)
    assert needed.of_judge is None
    widths = []
    for _ in range(20):
        again = mismatched_share(audit(needed.with_judge))[0]
        widths.append(again.high - again.low)
    assert np.mean(widths) == pytest.approx(0.045, rel=0.2)
