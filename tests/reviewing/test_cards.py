"""A row as the page shows it: what is wrong is marked, what would mend it is right."""

from __future__ import annotations

import json
import math

import pytest

from ncclean.reviewing.cards import card_of, mended_caption
from ncclean.reviewing.table import CARD_COLUMNS


def row(**values):
    fields = dict.fromkeys(CARD_COLUMNS)
    return {**fields, "uid": "u", "caption_number": 0, "shard": "s", "key": "k",
            "status": "ok", "near_miss_probability": 0.9, **values}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "suspect", "better", "mended"),
    [
        ("a red dog", "red", "blue", "a blue dog"),
        ("Red dogs", "red", "blue", "Blue dogs"),  # as the caption is written
        ("a redder red dog", "red", "blue", "a redder blue dog"),  # the word, not letters of one
        ("a c++ (book)", "(book)", "film", "a c++ film"),  # no pattern
        ("a dog", "red", "blue", None),
        ("a red dog", "red", None, None),
        ("a red dog", "red", r"\1 & <b>", r"a \1 & <b> dog"),
    ],
)
def test_the_better_word_takes_the_place_of_the_wrong_one(text, suspect, better, mended):
    assert mended_caption(row(text=text, suspect_word=suspect, better_word=better)) == mended


def test_a_caption_that_is_wrong_altogether_gets_no_better_word():
    of_words = {"text": "a red dog", "suspect_word": "red", "better_word": "blue"}
    card = card_of(row(**of_words, noise_probability=0.9))
    assert (card["words"], card["mended"]) == (None, None)
    assert card_of(row(**of_words, noise_probability=0.4))["mended"] == "a blue dog"
    untold = card_of(row(**of_words, near_miss_probability=None))  # by a model that knows no words
    assert (untold["words"], untold["mended"]) == (None, None)


TEXT, STARTS = "A dog runs. A cat sits. A bird.", [0, 12, 24]


def parts(noise, **values):
    return row(text=TEXT, part_starts=STARTS, part_noise_probabilities=noise, **values)


def test_wrong_sentences_go():
    assert mended_caption(parts([0.1, 0.9, 0.2])) == "A dog runs. A bird."
    assert mended_caption(parts([0.5, 0.9, 0.2])) == "A bird."
    # None alone is likely, but one of them is: the worst goes.
    doubtful = parts([0.3, 0.2, 0.4], part_noise_probability=0.7, worst_part_number=2)
    assert mended_caption(doubtful) == "A dog runs. A cat sits."
    assert mended_caption(parts([0.1, 0.2, 0.1], part_noise_probability=0.3)) is None
    assert mended_caption(parts([0.9, 0.9, 0.9])) is None  # nothing is left
    word = parts([0.1, 0.9, 0.2], suspect_word="dog", better_word="cow")
    assert mended_caption(word) == "A dog runs. A bird."  # a sentence comes first


@pytest.mark.parametrize(
    ("starts", "noise"),
    [([0, 12], [0.9]), ([5, 12], [0.9, 0.1]), ([0, 12, 12], [0.9] * 3), ([0], [0.9]),
     ([0, 24, 12], [0.9] * 3), (None, [0.9]), ([0, 12], None)],
)  # fmt: skip
def test_parts_that_do_not_fit_the_caption_mend_nothing(starts, noise):
    assert (
        mended_caption(row(text=TEXT, part_starts=starts, part_noise_probabilities=noise)) is None
    )


def test_pieces_say_what_is_wrong():
    card = card_of(parts([0.1, 0.9, 0.2], suspect_word="bird", better_word="fish"))
    assert card["pieces"] == [
        ("A dog runs.", ""), ("A cat sits.", "part"), ("A ", ""), ("bird", "word"), (".", ""),
    ]  # fmt: skip
    assert card["words"] == ["bird", "fish"]
    assert card["mended"] == "A dog runs. A bird."


def test_hostile_captions_stay_text_and_within_bounds():
    text = "<script>\u202egnp" + "x" * 100_000
    card = card_of(row(text=text))
    assert card["pieces"][0][0].startswith("<script>⟨U+202E⟩gnp")
    assert sum(len(piece) for piece, _ in card["pieces"]) <= 2_000
    shown = sum(len(piece) for piece, _ in card["pieces"]) - len("⟨U+202E⟩") + 1
    assert card["leftOut"] == len(text) - shown
    assert len(card["text"]) == 20_000
    assert not card["isWhole"]  # so the page does not let one edit half of it
    assert card_of(row(text="short"))["isWhole"]


def test_scores_without_a_value_and_nulls():
    card = card_of(row(text=None, similarity=math.nan, noise_probability=0.123456, error="x" * 999,
                       image_group="u9", near_miss_probability=None))  # fmt: skip
    assert card["scores"] == {"similarity": None, "noise_probability": 0.1235}
    assert (card["text"], card["pieces"], card["mended"]) == ("", [], None)
    assert len(card["error"]) == 300
    assert card["group"] == "u9"
    json.dumps(card, allow_nan=False)
