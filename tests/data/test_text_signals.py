"""Signals of captions: what is counted, and what a corpus shares."""

import random

import pytest

from ncclean.data.text_signals import TYPES, TextSignals, learn_boilerplate

LOOKS = [
    "old",
    "small",
    "large",
    "brown",
    "wet",
    "young",
    "happy",
    "sleepy",
    "tall",
    "tiny",
    "black",
    "white",
]
THINGS = [
    "dog",
    "cat",
    "horse",
    "fence",
    "lake",
    "road",
    "hill",
    "boat",
    "house",
    "tree",
    "wall",
    "bench",
    "car",
    "beach",
    "field",
]
DOES = ["runs", "sleeps", "stands", "waits", "jumps", "sits"]
WHERE = ["near", "behind", "on", "by", "under", "across"]


def captions(count=600, seed=0):
    rng = random.Random(seed)
    look, thing = (lambda: rng.choice(LOOKS)), (lambda: rng.choice(THINGS))
    return [
        f"a {look()} {thing()} {rng.choice(DOES)} {rng.choice(WHERE)} the {look()} {thing()}"
        if rng.random() < 0.5
        else f"the {look()} {thing()} and two {look()} {thing()} {rng.choice(WHERE)} a {thing()}"
        for _ in range(count)
    ]


def signals(text, boilerplate=()):
    return {name: column[0].as_py() for name, column in TextSignals(boilerplate)([text]).items()}


def test_columns_have_their_types_and_nulls_without_a_caption():
    columns = TextSignals([])(["a dog", None, ""])
    assert {name: column.type for name, column in columns.items()} == dict(TYPES)
    for name, column in columns.items():
        assert column[1].as_py() is None
        assert (column[0].as_py() is None) == (name == "text_boilerplate")
    assert columns["text_words"].to_pylist() == [2, None, 0]
    assert TextSignals([])([])["text_url"].to_pylist() == []


@pytest.mark.parametrize(
    "text",
    ["see https://example.com/a", "www.shop.example", "lamp - lights.co", "shop12.de/item",
     "HTTP://X.Y"],
)  # fmt: skip
def test_urls(text):
    assert signals(text)["text_url"]


@pytest.mark.parametrize(
    "text",
    ["IMG_1234.jpg", "DSC_0001", "dsc00012", "a dog P1030021.JPG", "PXL_20230101_1200",
     "image12.png", "screenshot 123", "_MG_0042", "logo.svg",
     "0f8fad5b-d9cb-469f-a165-70867728950e"],
)  # fmt: skip
def test_names_of_files_and_cameras(text):
    assert signals(text)["text_file_name"]


@pytest.mark.parametrize(
    "text",
    ["a dog. The cat sleeps", "a Canon EOS 5D", "image of 12 dogs", "Room 1234", "e.g. a dog",
     "it's 5.30 p.m.", "version 1.0", "Dr. No", "the U.S. team", "photo by J.P. Smith",
     "日本語の犬", "the P 38 plane"],
)  # fmt: skip
def test_plain_captions_have_no_sign(text):
    found = signals(text)
    assert not found["text_url"]
    assert not found["text_file_name"]


def test_repetition_and_digits():
    assert signals("a a a a a")["text_repetition"] == pytest.approx(0.75)
    assert signals("red car, red car")["text_repetition"] == pytest.approx(1 / 3)
    assert signals("dog")["text_repetition"] == 0
    assert signals("12 x 34")["text_digits"] == pytest.approx(0.8)
    assert signals("...")["text_digits"] == 0


def test_boilerplate_is_what_captions_share_at_their_ends():
    texts = captions()
    assert learn_boilerplate(texts) == []
    for n in range(0, 120, 4):
        texts[n] += " - Stock Photo"
        texts[n + 1] = f"Image of {texts[n + 1]}"
        texts[n + 2] += " | Click to enlarge" if n % 8 else ""
    learnt = learn_boilerplate([*texts, *(f"IMG_{n:04d}.jpg" for n in range(15))])
    assert set(learnt) == {"… stock photo", "image of …", "… click to enlarge", "img 0 jpg"}
    for text, expected in (
        ("A cat by a fence, STOCK photo", "… stock photo"),
        ("image of two cats", "image of …"),
        ("two cats, an image of stock", None),
        ("img 77 jpg", "img 0 jpg"),
        ("stock photo", None),
    ):
        assert signals(text, learnt)["text_boilerplate"] == expected, text


def test_captions_that_come_back_whole_make_no_phrases():
    """They are dropped as they are: what their ends share need not be boilerplate elsewhere."""
    whole = [f"{look} sale now" for look in ("cheap", "great", "final", "summer")]
    assert set(learn_boilerplate([*captions(), *12 * whole])) == set(whole)


def test_boilerplate_that_all_captions_have_is_found():
    """As a whole: `web site`, which has `our` before it each time, is a part of it."""
    texts = [f"{text} - at our web site" for text in captions()]
    assert learn_boilerplate(texts) == ["… at our web site"]


def test_ends_of_sentences_are_no_boilerplate():
    """Their words are in the middle of captions, too; or the words before them end none."""
    texts = captions()
    for n in range(60):
        texts[n] += " in the background"
        texts[n + 60] += " in front of a background of snow"
        texts[n + 120] = f"a {texts[n].split()[1]} golden retriever"
    assert learn_boilerplate(texts) == []


def test_fewer_than_ten_captions_are_no_boilerplate():
    assert learn_boilerplate([f"{n} lamps, stock photo" for n in range(9)]) == []
    assert learn_boilerplate([]) == []
