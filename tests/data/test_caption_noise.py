import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.data.caption_noise import (
    change_one_word,
    is_changeable,
    junk_caption,
    with_added_detail,
    with_foreign_sentence,
)
from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.word_classes import WordClasses


def test_every_word_has_another_of_its_class_and_form():
    for name, meanings in WordClasses.bundled().classes.items():
        for form in {form for forms in meanings for form in range(len(forms))}:
            assert sum(len(forms) > form for forms in meanings) > 1, (name, form)
    assert len(WordClasses.bundled().entries) > 1000


@pytest.mark.parametrize(
    "caption",
    ["a red circle", "TWO DOGS", "A man riding a horse.", "an orange cat", "3 birds", "grey sky"],
)
def test_exactly_one_word_changes_and_case_is_kept(caption):
    for seed in range(50):
        changed = change_one_word(caption, random.Random(seed))
        before, after = caption.split(), changed.split()
        assert len(before) == len(after)
        different = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
        words = [(b, a) for b, a in different if b.lower() not in ("a", "an")]
        assert len(words) == 1, changed
        assert words[0][0].isupper() == words[0][1].isupper() or words[0][0].isdigit()


def test_synonyms_do_not_replace_one_another():
    found = {change_one_word("gray", random.Random(seed)) for seed in range(300)}
    assert len(found) > 10
    assert not found & {"gray", "grey"}


def test_word_classes_as_people_write_them():
    classes = WordClasses.of_lines(
        [
            "[colour]",
            "rot  # die Farbe",
            "gru\u0308n",
            "violett lila",
            "lila flieder/",
            "blau/blaue",
        ]
    )

    def others(caption):
        return {place.word: classes.others(place) for place in classes.places(caption)}

    assert others("die Farbe rot") == {
        "rot": [("gr\u00fcn",), ("violett", "lila"), ("lila", "flieder"), ("blau",)]
    }
    assert len(others("gr\u00fcn")["gr\u00fcn"]) == len(others("gru\u0308n")["gru\u0308n"]) == 4
    assert others("lila") == {"lila": [("rot",), ("gr\u00fcn",), ("flieder",), ("blau",)]}
    assert others("blaue") == {"blaue": []}


def test_articles_follow():
    found = {change_one_word("a red apple", random.Random(seed)) for seed in range(400)}
    assert "an orange apple" in found
    assert "a orange apple" not in found
    assert {c.split()[0] for c in found if c.endswith("eggplant")} <= {"a"}


@pytest.mark.parametrize("caption", ["", "ein Hund", "IMG_0001.JPG", "\u732b", "one-way", "1957"])
def test_captions_without_a_known_word_are_left(caption):
    assert not is_changeable(caption)
    assert change_one_word(caption, random.Random(0)) is None


@given(st.text(max_size=80), st.integers(0, 99))
def test_any_text_is_changed_or_left(text, seed):
    changed = change_one_word(text, random.Random(seed))
    assert (changed is not None) == is_changeable(text)
    assert changed != text


def test_junk_is_seeded():
    assert junk_caption(random.Random(1)) == junk_caption(random.Random(1))
    assert len({junk_caption(random.Random(seed)) for seed in range(200)}) > 14


OWN, OTHER = "A dog runs. A cat sits. A bird flies.", "One red car. Two blue boats."


def test_a_foreign_sentence_takes_the_place_of_one():
    found = {with_foreign_sentence(OWN, OTHER, random.Random(seed)) for seed in range(200)}
    assert found == {
        (f"{red} A cat sits. A bird flies.", 0) for red in ("One red car.", "Two blue boats.")
    } | {
        (f"A dog runs. {red} A bird flies.", 1) for red in ("One red car.", "Two blue boats.")
    } | {
        (f"A dog runs. A cat sits. {red}", 2) for red in ("One red car.", "Two blue boats.")
    }  # fmt: skip


def test_an_added_detail_is_one_sentence_more():
    found = {with_added_detail(OWN, OTHER, random.Random(seed)) for seed in range(50)}
    assert found == {(f"{OWN} One red car.", 3), (f"{OWN} Two blue boats.", 3)}


@pytest.mark.parametrize(
    ("caption", "other", "joined"),
    [
        ("A dog runs.", "One red car.", "A dog runs and one red car."),
        ("A dog runs", "One red car.", "A dog runs and one red car"),
        ("a dog!", "TWO BOATS", "a dog and TWO BOATS!"),
        ("A dog runs...", "A car.", "A dog runs and a car..."),
    ],
)
def test_an_added_detail_joins_a_single_sentence(caption, other, joined):
    assert with_added_detail(caption, other, random.Random(0)) == (joined, None)


def test_a_caption_of_one_sentence_is_replaced_whole():
    assert with_foreign_sentence("A dog.", "A car.", random.Random(0)) == ("A car.", 0)


@pytest.mark.parametrize("change", [with_foreign_sentence, with_added_detail])
def test_what_the_caption_says_already_is_not_foreign(change):
    assert change(OWN, "A cat sits. A dog runs.", random.Random(0)) == (OWN, None)
    for seed in range(20):
        text, _ = change(OWN, "A cat sits. One red car.", random.Random(seed))
        assert "One red car" in text
        assert text.count("A cat sits.") <= 1


@pytest.mark.parametrize("change", [with_foreign_sentence, with_added_detail])
def test_the_number_is_that_of_the_new_caption(change):
    """A sentence put behind an abbreviation joins that one."""
    own = "A dog in clip art. A cat sits in clip art."
    assert len(sentence_starts(own)) == 1
    for caption in (own, "A bird flies. A dog in clip art.", "一只狗。一只猫。"):
        for seed in range(20):
            text, part = change(caption, "Two red boats", random.Random(seed))
            if part is not None:
                assert "Two red boats" in parts_of(text, sentence_starts(text))[part]


def test_a_sentence_that_joins_the_one_before_has_its_number():
    own = "A shop of Smith Co. It sells fish. A bird flies."
    found = {with_foreign_sentence(own, "two boats", random.Random(seed)) for seed in range(30)}
    assert ("A shop of Smith Co. two boats A bird flies.", 0) in found
    for text, part in found:
        assert "two boats" in parts_of(text, sentence_starts(text))[part]


@given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 9))
def test_any_texts_take_a_sentence(caption, other, seed):
    for change in (with_foreign_sentence, with_added_detail):
        text, part = change(caption, other, random.Random(seed))
        assert part is None or 0 <= part < len(sentence_starts(text))
        assert change(caption, other, random.Random(seed)) == (text, part)
        if change is with_foreign_sentence:
            own, theirs = (parts_of(one, sentence_starts(one)) for one in (caption, other))
            assert (text == caption and part is None) == all(one in own for one in theirs)
