"""The section of causes: what a card says, and what a caption cannot do to it."""

import dataclasses
import math
from datetime import date

import pytest

from ncclean.base.estimates import Estimate
from ncclean.errors import InputError
from ncclean.explaining.cause_table import Cause, Example, check_examples
from ncclean.explaining.own_null import NOT_KNOWN
from ncclean.report.causes import MOST_CARDS, cards_of
from ncclean.report.measurements import measure_table
from ncclean.report.page import Page, render
from ncclean.report.table import ScoreTable
from tests.report.tables import HOSTILE, graded, write_scores
from tests.report.test_page import Elements

CAUSE = Cause(
    number=1, folded_into=None, is_cause=True, kind="word", value="arrow", label="arrow",
    outcome="near miss", pairs=1890, rate=Estimate(0.453, 0.41, 0.49),
    outside=Estimate(0.067, 0.06, 0.07), excess=730.0,
    q_value=0.001, condition="regexp_matches(lower(text), 'arrow')",
    proposal="arrow stands for hexagon",
    examples=(Example("u", "00000", "k1", 1, 0, "a pink arrow", 0.9),),
)  # fmt: skip


def page(tmp_path, causes):
    table = ScoreTable.open([str(write_scores(tmp_path / "s.parquet", graded()))])
    cards = cards_of(causes) if causes is not None else None
    return render(measure_table(table), Page("t", ["s.parquet"], date(2026, 1, 2), causes=cards))


def test_a_card_says_what_where_and_how_many(tmp_path):
    folded = dataclasses.replace(CAUSE, number=2, folded_into=1, kind="phrase", label="pink arrow")
    text = Elements(page(tmp_path, [CAUSE, folded])).text
    for part in (
        "Captions with the word “arrow”", "45.3%", "have a wrong word, elsewhere 6.7%", "1,890",
        "about 730 errors", "arrow stands for hexagon", "a pink arrow", CAUSE.condition,
        "Captions with “pink arrow”",
    ):  # fmt: skip
        assert part in text


def test_a_group_that_may_only_be_read_worse_is_listed_apart(tmp_path):
    group = dataclasses.replace(
        CAUSE, number=2, is_cause=False, kind="language", label="ja", outcome="mismatch",
        rate=Estimate(0.093, 0.06, 0.13), excess=math.nan, q_value=math.nan,
    )  # fmt: skip
    cards = cards_of([CAUSE, group])
    assert [card.is_cause for card in cards] == [True, False]
    whole = Elements(page(tmp_path, [CAUSE, group])).text
    assert "Captions in ja: 1,890 pairs, of which 9.3% are mismatched" in whole
    alone = page(tmp_path, [dataclasses.replace(group, rate=NOT_KNOWN)])
    assert 'class="cause"' not in alone
    assert "of which" not in Elements(alone).text.partition("Captions in ja")[2][:60]


def test_several_causes_have_a_table(tmp_path):
    assert 'class="overview"' not in page(tmp_path, [CAUSE])
    other = dataclasses.replace(CAUSE, number=2, kind="host", label="broken.example")
    html = page(tmp_path, [CAUSE, other])
    assert "1. Captions with the word “arrow”" in Elements(html).text
    assert 'href="#cause-2"' in html
    assert html.count("have a wrong word") == 4


def test_without_causes_and_without_a_table(tmp_path):
    assert "No group of pairs is known to be wrong more often" in page(tmp_path, [])
    assert 'id="causes"' not in page(tmp_path, None)


def test_hostile_text_makes_no_element(tmp_path):
    causes = [
        dataclasses.replace(
            CAUSE, number=number, kind=kind, value=text, label=text, condition=text, proposal=text,
            join=text, examples=(Example("u", text, text, 1, 0, text, 0.9),),
        )
        for number, (text, kind) in enumerate(
            zip(HOSTILE.values(), ["word", "host", "shape of the caption", "<b>"] * 3, strict=False)
        )
    ]  # fmt: skip
    html = page(tmp_path, causes)
    names = [tag for tag, _ in Elements(html).tags]
    assert names.count("script") == 2
    assert not {"img", "iframe", "object"} & set(names)
    assert "\u202e" not in html


def test_causes_of_another_table_are_refused(tmp_path):
    table = ScoreTable.open([str(write_scores(tmp_path / "s.parquet", graded()))])
    (uid,) = table.rows("SELECT uid FROM pairs LIMIT 1")[0]
    own = dataclasses.replace(CAUSE, examples=(Example(uid, "0", "k", 1, 0, "a", 0.9),))
    check_examples([own, CAUSE], table.connection, "causes.parquet")
    check_examples([dataclasses.replace(CAUSE, examples=())], table.connection, "causes.parquet")
    with pytest.raises(InputError, match=r"causes\.parquet is about another table"):
        check_examples([CAUSE], table.connection, "causes.parquet")


def test_at_most_so_many_cards():
    causes = [dataclasses.replace(CAUSE, number=number) for number in range(1, 100)]
    assert len(cards_of(causes)) == MOST_CARDS
