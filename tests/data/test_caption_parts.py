"""Sentences of captions, and windows of long ones."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclean.data.caption_parts import MOST_PARTS, parts_of, sentence_starts, split_captions

CONTEXT = 12


def count_bytes(texts):
    """The tokens of a tokenizer that knows no words: a token is a byte."""
    return [len(text.strip().encode()) + 2 for text in texts]


def count_words(texts):
    return [len(text.split()) + 2 for text in texts]


def sentences(caption):
    return parts_of(caption, sentence_starts(caption))


@pytest.mark.parametrize(
    "parts",
    [
        ["A dog runs.", "A cat sits!", "Is it red?"],
        ["Dr. Smith walks 3.5 km in the U.S. with Mr. Poe.", "He stops."],
        ["A fruit, e.g. an apple, i.e. this one.", "It is $2.50."],
        ["1. A dog.", "2. A cat.", "3. birds"],
        ["(1) A dog.", "(2) A cat."],
        ['He said "hello."', "Then he left."],
        ["A dog runs.", "two men are talking"],
        ["一只狗在跑。", "一只猫坐着！", "鸟？"],
        ["犬が走る。", "猫が座る。"],
        ["كلب يجري.", "قطة تجلس؟", "نعم"],
        ["एक कुत्ता।", "एक बिल्ली।"],
        ["A dog 🐶🐶. 🐱🐱🐱.", "A cat."],
        ["A dog runs...", "A cat sits."],
        ["ภาษาไทย ไม่มีช่องว่าง"],
        ["a red circle, and a blue one; both small"],
        ["😀😀😀"],
        ["IMG_0001.JPG of www.Example.com.", "What a dog!"],
        ["3.14"],
        [". . . . ."],
    ],
)
@pytest.mark.parametrize("blank", [" ", "\n", "\n\n"])
def test_sentences(parts, blank):
    no_blanks = any(0x3000 <= ord(letter) < 0xA000 for letter in parts[0])
    assert sentences(("" if no_blanks else blank).join(parts)) == parts


@pytest.mark.parametrize("blank", ["\n", "\n\n", "\r\n"])
def test_lines_of_a_list(blank):
    parts = ["- a dog", "- a cat", "* a bird"]
    assert sentences(blank.join(parts)) == parts


def test_khmer_has_a_full_stop_of_its_own():
    assert sentences("ឆ្កែកំពុងរត់។ ឆ្មាកំពុងដេក។") == ["ឆ្កែកំពុងរត់។", "ឆ្មាកំពុងដេក។"]


def test_thai_has_no_full_stop_and_is_cut_at_blanks_and_between_letters_with_their_marks():
    """Only where it exceeds the context: a blank in Thai may end a sentence or not."""
    caption = "สุนัขสีน้ำตาลวิ่งอยู่บนชายหาด แมวสีดำนอนอยู่บนโซฟา ท้องฟ้าเป็นสีฟ้าและมีเมฆ"
    assert sentences(caption) == [caption]
    (starts,) = split_captions([caption], count_bytes, 100)
    assert parts_of(caption, starts) == caption.split()
    (starts,) = split_captions([caption], count_bytes, 32)
    assert not any(unicodedata.category(caption[start])[0] == "M" for start in starts)


TEXTS = st.text(
    st.sampled_from("aB猫ิ។🐶é. .!?。\n\t,;-*1)(\"'\x07\u202e\u200f\u00a0"), max_size=200
)


@given(TEXTS | st.text(max_size=80))
def test_parts_put_together_are_the_caption(caption):
    for counts in (count_bytes, count_words):
        (starts,) = split_captions([caption], counts, CONTEXT)
        assert starts[0] == 0
        assert starts == sorted(set(starts))
        ends = [*starts[1:], len(caption)]
        pieces = [caption[begin:end] for begin, end in zip(starts, ends, strict=True)]
        assert "".join(pieces) == caption
        assert parts_of(caption, starts) == [piece.strip() for piece in pieces]
        if caption.strip():
            assert all(piece.strip() for piece in pieces)


@given(TEXTS)
def test_no_part_exceeds_the_context(caption):
    """Unless it is a single character, or there are too many parts."""
    (starts,) = split_captions([caption], count_bytes, CONTEXT)
    parts = parts_of(caption, starts)
    long = [part for part in parts if len(part) > 1 and count_bytes([part])[0] > CONTEXT]
    assert not long or len(parts) == MOST_PARTS


@given(TEXTS)
def test_sentences_that_fit_stay_whole(caption):
    starts = sentence_starts(caption)
    assert split_captions([caption], lambda texts: [CONTEXT] * len(texts), CONTEXT) == [starts]


@pytest.mark.parametrize(
    ("caption", "parts"),
    [
        ("a b c, d e; f g h, i j", ["a b c, d e;", "f g h, i j"]),
        ("a b c d e, f g h i j", ["a b c d e,", "f g h i j"]),
        ("a b c d e f g h i j", ["a b c d e", "f g h i j"]),
        ("aa bb cc dd ee: ff gg hh ii jj", ["aa bb cc dd ee:", "ff gg hh ii jj"]),
    ],
)
def test_a_long_sentence_is_cut_behind_a_clause_or_a_word(caption, parts):
    (starts,) = split_captions([caption], count_words, 9)
    assert parts_of(caption, starts) == parts


def test_scripts_without_spaces_are_cut_by_their_tokens():
    """Twelve characters may be 36 tokens: what is counted first are bytes."""
    (starts,) = split_captions(["猫" * 12], count_bytes, 14)
    assert parts_of("猫" * 12, starts) == ["猫" * 3] * 4
    (starts,) = split_captions(["猫猫猫猫猫，猫猫猫猫猫猫"], count_bytes, 24)
    assert parts_of("猫猫猫猫猫，猫猫猫猫猫猫", starts) == ["猫猫猫猫猫，", "猫猫猫猫猫猫"]


def test_an_unknown_count_is_too_many():
    def count(texts):
        return [None if len(text) > 30 else 1 for text in texts]

    (starts,) = split_captions(["word " * 20], count, CONTEXT)
    assert len(starts) == 4


@pytest.mark.parametrize(
    "piece", ["A dog runs. ", "word ", "x", ".", "😀", "猫", "\n.", "e.g. ", '"']
)
def test_a_caption_of_any_length_has_few_parts(piece):
    caption = (piece * 60_000)[:120_000].strip()
    begin = time.perf_counter()
    (starts,) = split_captions([caption], count_words, 77)
    assert time.perf_counter() - begin < 20  # quadratic would take hours
    assert len(starts) <= MOST_PARTS
    ends = [*starts[1:], len(caption)]
    assert "".join(caption[b:e] for b, e in zip(starts, ends, strict=True)) == caption


def test_further_sentences_are_taken_together():
    caption = " ".join(f"Dog number {number} runs." for number in range(250))
    parts = sentences(caption)
    assert len(parts) == 84
    assert parts[:2] == [" ".join(f"Dog number {n} runs." for n in range(k, k + 3)) for k in (0, 3)]
    assert " ".join(parts) == caption
