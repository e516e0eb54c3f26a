"""Word classes learnt from captions: what is put together, and what a poisoned caption can do."""

import random

import pytest

from ncclean.data import learnt_word_classes
from ncclean.data.learnt_word_classes import learn_word_classes
from ncclean.data.word_classes import WordClasses, exchanged

ANIMALS, COLOURS = ["dog", "cat", "horse", "sheep"], ["red", "brown", "white"]
TEMPLATES = ["a {} {} on the grass", "the {} {} is running", "my {} {}, seen from behind"]


def captions(count=2_000, animals=ANIMALS, colours=COLOURS, templates=TEMPLATES):
    rng = random.Random(0)
    return [rng.choice(templates).format(rng.choice(colours), rng.choice(animals))
            for _ in range(count)]  # fmt: skip


def class_of(classes, word):
    place = classes.entries.get(word)
    if place is None:
        return set()
    return {forms[0][0] for forms in classes.classes[place.word_class]}


def test_words_that_occur_in_the_same_places_are_a_class():
    classes = learn_word_classes(captions())
    assert class_of(classes, "dog") == set(ANIMALS)
    assert class_of(classes, "red") == set(COLOURS)


def test_the_order_of_the_captions_changes_nothing():
    texts = captions()
    classes = learn_word_classes(texts)
    random.Random(1).shuffle(texts)
    assert learn_word_classes(texts).classes == classes.classes


@pytest.mark.parametrize(
    ("templates", "animals", "colours"),
    [
        (["ein {} {} im gras", "das {} {} schläft"], ["pferd", "schaf"], ["rotes", "weißes"]),
        (["{} {} घास पर है", "एक {} {} दौड़ता है"], ["कुत्ता", "घोड़ा"], ["लाल", "सफ़ेद"]),
        (["{} {} على العشب", "هذا {} {}"], ["كلب", "قط"], ["أحمر", "أبيض"]),
    ],
)
def test_other_languages(templates, animals, colours):
    classes = learn_word_classes(captions(600, animals, colours, templates))
    assert class_of(classes, animals[0]) >= set(animals)
    assert class_of(classes, colours[0]) >= set(colours)
    assert not class_of(classes, animals[0]) & set(colours)


def test_rare_words_names_and_numbers_are_in_no_class():
    names = [f"{name} and img_{n} at 10:{n} on 2024-01-{n}" for n, name in enumerate("abcdefgh")]
    classes = learn_word_classes([*captions(), *names])
    assert not {"img", "h", "2024-01-3"} & set(classes)


def test_nothing_is_learnt_of_too_little():
    for texts in ([], [""], ["a dog"], ["???"] * 100, captions(10)):
        assert learn_word_classes(texts).classes == {}


def test_copies_and_long_captions_count_little():
    """Neither one caption a thousand times nor one with a thousand words makes a class."""
    spam = " ".join(f"a {word} on the grass." for word in ("dog", "buy", "cheap", "red")) + " "
    for texts in ([spam] * 1_000, [spam * 1_000]):
        classes = learn_word_classes([*captions(), *texts])
        assert not {"buy", "cheap"} & set(classes)
        assert class_of(classes, "dog") == set(ANIMALS)


def test_what_is_read_is_bounded(monkeypatch):
    monkeypatch.setattr(learnt_word_classes, "CAPTIONS", 500)

    def endless():
        while True:
            yield from captions(100)

    assert class_of(learn_word_classes(endless()), "dog") >= {"dog", "cat"}
    monkeypatch.setattr(learnt_word_classes, "CAPTIONS", 10**9)
    monkeypatch.setattr(learnt_word_classes, "CHARACTERS", 20_000)
    assert class_of(learn_word_classes(endless()), "dog") >= {"dog", "cat"}


def test_they_are_a_list_that_can_be_read_again():
    classes = learn_word_classes(captions())
    assert WordClasses.of_lines(classes.lines()).classes == classes.classes
    shipped = WordClasses.bundled()
    assert WordClasses.of_lines(shipped.lines()).classes == shipped.classes


SMALL = WordClasses.of_lines(
    ["# pets", "[pet]", "dog puppy/dogs puppies", "cat/cats", "owl", "", "[colour]", "red", "blue"]
)


def test_a_word_belongs_to_its_class_in_any_case():
    found = SMALL.places("A Puppy and a RED-EYED cat, blue")
    assert [(place.word, place.word_class) for place in found] == [
        ("Puppy", "pet"), ("cat", "pet"), ("blue", "colour"),
    ]  # fmt: skip


def test_others_mean_something_else_in_the_same_form():
    one, many = SMALL.places("puppy dogs")
    assert SMALL.others(one) == [("cat",), ("owl",)]
    assert SMALL.others(many) == [("cats",)]


def test_case_and_article_follow_the_new_word():
    caption = "A Dog, a dog, A DOG"
    places = SMALL.places(caption)
    assert exchanged(caption, places[0], "owl") == "An Owl, a dog, A DOG"
    assert exchanged(caption, places[1], "owl") == "A Dog, an owl, A DOG"
    assert exchanged(caption, places[2], "owl") == "A Dog, a dog, AN OWL"


def test_a_list_of_ones_own(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeff[vehicle]\nCar/Cars\ntruck/trucks\n", "utf-8")
    assert [place.word for place in WordClasses.load(str(path)).places("a car")] == ["car"]


@pytest.mark.parametrize("text", ["", "# nothing", "[pet]\ndog\n[colour]\nred\nblue", "\udce9"])
def test_a_list_that_says_nothing_is_an_error(tmp_path, text, refused):
    path = tmp_path / "words.txt"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(WordClasses.load, str(path))


def test_a_list_that_is_not_there_is_an_error(refused):
    refused(WordClasses.load, "nowhere")
