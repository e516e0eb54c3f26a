import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.data.caption_noise import (
    change_one_word,
    is_changeable,
    junk_caption,
)
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
