"""The pairs that are shown, and the cards of causes, whatever a caption says."""

import dataclasses
import math
from datetime import date

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.base.estimates import Estimate
from ncclean.errors import InputError
from ncclean.explaining.cause_table import Cause, Example, check_examples
from ncclean.explaining.own_null import NOT_KNOWN
from ncclean.report.measurements import measure_table
from ncclean.report.page import Page, render
from ncclean.report.pairs import GROUPS, MOST_CARDS, cards_of, choose_pairs
from ncclean.report.table import ScoreTable
from tests.report.tables import HOSTILE, graded, write_scores
from tests.report.test_page import Elements


def chosen(tmp_path, rows, each):
    table = ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))])
    pairs = choose_pairs(table, each)
    assert len({(pair.shard, pair.row) for pair in pairs}) == len(pairs)
    return {group: [pair.key for pair in pairs if pair.group == group] for group in GROUPS}, pairs


def test_groups_and_their_order(tmp_path):
    rows = [*graded(), {"status": "image_missing"}, {"status": "caption_missing", "error": "empty"}]
    keys, pairs = chosen(tmp_path, rows, 2)
    assert keys["worst"] == ["k0", "k1"]
    assert keys["best"] == ["k39", "k38"]
    assert sorted(keys["borderline"]) == ["k19", "k20"]
    assert keys["failed"] == ["k41", "k40"]
    assert pairs[0].flags == (
        "osa_noisy", "ncu_split = forget", "noise_probability ≥ 0.5",
        "clean_posterior < 0.5",
    )  # fmt: skip
    assert pairs[0].scores["is_noisy"] is True
    assert pairs[-1].error is None
    assert pairs[-2].error == "empty"


def test_few_pairs_are_shown_once_each(tmp_path):
    keys, pairs = chosen(tmp_path, graded(3), 24)
    assert keys == {
        "worst": ["k0", "k1"], "borderline": [], "wrong sentence": [], "almost right": [],
        "best": ["k2"], "failed": [],
    }  # fmt: skip
    assert len(pairs) == 3


def test_without_noise_probability_the_cosine_decides(tmp_path):
    rows = [{"similarity": value / 10} for value in range(5)]
    keys, _ = chosen(tmp_path, rows, 24)
    assert keys["worst"] == ["k0", "k1"]
    assert keys["best"] == ["k4", "k3", "k2"]
    assert keys["borderline"] == []


def test_matched_pairs_with_a_wrong_word_are_a_group(tmp_path):
    rows = [{**row, "near_miss_probability": 0.1} for row in graded()]
    word = {"near_miss_probability": 0.9, "suspect_word": "red", "better_word": "blue"}
    for mismatched in (rows[0], rows[2]):
        mismatched |= word
    rows[30] |= word
    rows[35] |= {**word, "near_miss_probability": 0.95, "suspect_word": "<b>" * 200}
    rows[36] |= {**word, "suspect_word": None, "better_word": None}
    rows[38] |= {**word, "near_miss_probability": 0.2}  # probably right as it is
    keys, pairs = chosen(tmp_path, rows, 2)
    assert keys["almost right"] == ["k35", "k30"]
    assert keys["best"] == ["k39", "k38"]
    by_key = {pair.key: pair for pair in pairs}
    assert by_key["k30"].words == ("red", "blue")
    assert len(by_key["k35"].words[0]) < 320
    assert by_key["k39"].words is by_key["k38"].words is None
    assert by_key[keys["worst"][0]].words is None  # one better word leaves it wrong


def test_none_at_all(tmp_path):
    assert chosen(tmp_path, graded(), 0)[1] == ()
    assert chosen(tmp_path, [], 5)[1] == ()


def test_long_captions_are_cut_with_the_true_count(tmp_path):
    rows = [{**row, "text": HOSTILE["one_word"]} for row in graded(3)]
    _, pairs = chosen(tmp_path, rows, 3)
    assert len(pairs[0].caption) == 2000
    assert pairs[0].caption_left_out == pytest.approx(998_000)


def test_same_rows_in_other_shards_do_not_mix(tmp_path):
    rows = [
        {**row, "shard": shard, "row": number, "key": f"{shard}-{number}"}
        for shard in ("a", "b'; --")
        for number, row in enumerate(graded(10))
    ]
    keys, pairs = chosen(tmp_path, rows, 1)
    assert keys["worst"] == ["a-0"]
    assert all(pair.key == f"{pair.shard}-{pair.row}" for pair in pairs)


def with_parts(text, starts, noise, **columns):
    """A matched pair whose caption has these parts."""
    fields = {"part_noise_probability": 0.9, "noise_probability": 0.1, "similarity": 0.4}
    names = {"text": text, "part_starts": starts, "part_noise_probabilities": noise}
    return {**fields, **names, **columns}


def pieces(tmp_path, text, starts, noise):
    _, pairs = chosen(tmp_path, [with_parts(text, starts, noise)], 5)
    return pairs[0].pieces, pairs[0].caption_left_out


def test_same_shards_of_two_tables_do_not_mix(tmp_path):
    """Each corpus of img2dataset begins with a shard 00000."""
    tables, joined = [], {}
    for name, probability in (("a", 0.125), ("b", 0.875)):
        rows = [
            {"uid": f"{name}{n}", "text": name, "similarity": n / 10,
             "noise_probability": probability}
            for n in range(2)
        ]  # fmt: skip
        tables.append(str(write_scores(tmp_path / f"{name}.parquet", rows)))
        joined |= {row["uid"]: probability for row in rows}
    scores = pa.table({"uid": [*joined], "similarity": [*joined.values()]})
    pq.write_table(scores, tmp_path / "other.parquet")
    for join in ([], [f"other={tmp_path}/other.parquet"]):
        pairs = choose_pairs(ScoreTable.open(tables, join=join), 2)
        assert [(pair.group, pair.uid) for pair in pairs] == [
            ("worst", "b0"), ("worst", "b1"), ("best", "a1"), ("best", "a0")
        ]  # fmt: skip
        for pair in pairs:
            assert (pair.caption, pair.noise_probability) == (pair.uid[0], joined[pair.uid])
            assert not join or pair.scores["other.similarity"] == joined[pair.uid]


def test_matched_pairs_with_a_wrong_sentence_are_a_group(tmp_path):
    rows = graded()
    wrong = with_parts("A dog. A cat.", [0, 7], [0.1, 0.9])
    rows[2] |= {**wrong, "noise_probability": 0.95}  # mismatched altogether
    rows[30] |= wrong
    rows[31] |= {**wrong, "part_noise_probability": 0.5}
    rows[32] |= {**wrong, "part_noise_probability": 0.49}
    rows[33] |= with_parts("A dog.", [0], [0.9])  # one sentence is the pair
    keys, pairs = chosen(tmp_path, rows, 3)
    assert keys["wrong sentence"] == ["k30", "k31"]
    by_key = {pair.key: pair for pair in pairs}
    assert by_key["k30"].pieces == (("A dog.", False), ("A cat.", True))
    assert by_key["k30"].caption == "A dog. A cat."
    assert by_key["k30"].scores["part_noise_probability"] == pytest.approx(0.9)
    assert by_key["k39"].pieces == (("caption 39", False),)


def test_a_part_is_wrong_from_one_half_on(tmp_path):
    noise = [0.5, 0.4999, None, float("nan"), 0.9]
    found, left_out = pieces(tmp_path, "ab cd ef gh ij", [0, 3, 6, 9, 12], noise)
    assert found == (
        ("ab", True), ("cd", False), ("ef", False), ("gh", False), ("ij", True)
    )  # fmt: skip
    assert left_out == 0


@pytest.mark.parametrize(
    ("starts", "noise"),
    [
        ([-5, 0, 3], [0.9, 0.9, 0.9]),
        ([-5, 3], [0.9, 0.9]),
        ([-3, -2, 0], [0.9, 0.9, 0.9]),
        ([3, 6], [0.9, 0.9]),
        ([0, 6, 3], [0.9, 0.9, 0.9]),
        ([0, 3, 3], [0.9, 0.9, 0.9]),
        ([0, None], [0.9, 0.9]),
        ([0, 3], [0.9]),
        ([0, 3], [0.9, 0.9, 0.9]),
        ([0, 3], None),
        (None, [0.9, 0.9]),
        ([], []),
    ],
)
def test_parts_that_do_not_fit_the_caption_are_one_piece(tmp_path, starts, noise):
    assert pieces(tmp_path, "ab cd ef", starts, noise) == ((("ab cd ef", False),), 0)


def test_parts_beyond_the_caption_are_not_shown(tmp_path):
    found = pieces(tmp_path, "ab cd ef", [0, 3, 100, 2**31 - 1], [0.1, 0.9, 0.9, 0.9])
    assert found == ((("ab", False), ("cd ef", True)), 0)


@pytest.mark.parametrize("kind", ["VARCHAR[]", "DOUBLE[]", "VARCHAR"])
def test_parts_that_are_no_numbers(tmp_path, kind):
    path = write_scores(tmp_path / "s.parquet", [with_parts("ab cd ef", [0, 3], [0.1, 0.9])])
    duckdb.execute(
        f"COPY (SELECT * REPLACE (part_starts::{kind} AS part_starts, "
        f"part_noise_probabilities::{kind} AS part_noise_probabilities) FROM '{path}') "
        f"TO '{tmp_path / 't.parquet'}'"
    )
    (pair,) = choose_pairs(ScoreTable.open([str(tmp_path / "t.parquet")]), 5)
    assert pair.caption == "ab cd ef"


def test_long_captions_of_many_parts_are_cut_with_the_true_count(tmp_path):
    text = "dog. " * 2_000
    starts = list(range(0, len(text), 100))
    found, left_out = pieces(tmp_path, text, starts, [0.9] * len(starts))
    size = sum(len(piece) for piece, _ in found)
    assert 1_900 < size <= 2_000
    assert left_out == pytest.approx(10_000 - size, abs=60)  # blanks at the ends of pieces


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
    assert [card.cause.is_cause for card in cards] == [True, False]
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
