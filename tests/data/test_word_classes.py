import pytest

from ncclean.data.word_classes import WordClasses, exchanged

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
