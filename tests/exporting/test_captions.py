"""Which captions an exported sample has, in which order, and what is true of them."""

import pytest

from ncclean.data.samples import Caption, Sample
from ncclean.exporting.captions import exported_captions, exported_truth, truth_after
from ncclean.exporting.choices import Choice

CAPTIONS = [Caption(0, None, "zero"), Caption(1, None, "one"), Caption(3, None, "three")]


def fields(numbers, metadata=None, captions=CAPTIONS, **mended):
    """The caption fields of a sample; `mended` are texts, `n3` that of caption 3."""
    texts = {int(name[1:]): text for name, text in mended.items()}
    sample = Sample(0, "a", captions=list(captions))
    exported = exported_captions(sample, Choice(1, numbers, texts))
    return None if exported is None else exported.fields(metadata or {})


def test_the_best_comes_first_and_the_rest_apart():
    assert fields([3, 0]) == {
        "caption": "three", "captions": ["three", "zero"], "other_captions": ["one"],
    }  # fmt: skip
    assert fields([1]) == {
        "caption": "one", "captions": ["one"], "other_captions": ["zero", "three"],
    }  # fmt: skip


def test_a_sample_that_lacks_a_selected_caption_has_none():
    assert fields([3, 2]) is None


def test_truth_of_each_caption_follows_the_kept_ones():
    truth = {"is_noisy": [True, False, False, True], "noise_kind": "ncr", "other": [1, 2]}
    found = fields([3, 1], truth)
    assert found["is_noisy"] == [True, False]
    assert found.keys() == {"caption", "captions", "other_captions", "is_noisy"}


def test_a_mended_only_caption():
    """Whatever its number: samples that are not among the numbers have one."""
    only = [Caption(0, None, None), Caption(2, None, "whole")]
    assert fields(None, {"is_noisy": True}, only, n0="left") == {
        "caption": "left", "original_caption": "whole",
        "is_noisy": None, "original_is_noisy": True,
    }  # fmt: skip
    assert fields(None, {}, only, n0="left") == {"caption": "left", "original_caption": "whole"}
    assert fields(None, {}, only[:1], n0="left") is None


def test_mended_captions_among_several():
    assert fields([3, 0], n3="th") == {
        "caption": "th", "captions": ["th", "zero"], "other_captions": ["one"],
        "original_caption": "three", "original_captions": ["three", "zero"],
    }  # fmt: skip
    assert fields([1, 3], n3="ree") == {
        "caption": "one", "captions": ["one", "ree"], "other_captions": ["zero"],
        "original_captions": ["one", "three"],
    }  # fmt: skip


def test_an_only_caption_is_mended_where_it_was_read_from():
    sample = Sample(0, "a", captions=[Caption(0, "alt", "whole")])
    only = exported_captions(sample, Choice(1, None, {0: "left"}))
    names = ("alt", "x.y")
    record = {"Alt": "whole", "x": {"Y": "whole"}, "text": "other", "n": 3}
    found = only.record(record, {}, names)
    mended = {"Alt": "left", "x": {"Y": "left"}, "text": "other", "n": 3}
    assert found == {**mended, "caption": "left", "original_caption": "whole"}
    number = only.record({"alt": 3, "x": []}, {}, names)
    assert (number["alt"], number["x"]) == (3, [])
    several = exported_captions(sample, Choice(1, [0], {0: "left"}))
    assert several.record({"alt": "whole"}, {}, names)["alt"] == "whole"


# Truth of mended captions: nobody evaluates a clean caption as noisy.

CAPTION = "A dog runs. A cat sleeps. The sky is blue."
FOREIGN = {"is_noisy": True, "noise_kind": "foreign_sentence", "noisy_part": 1}
CLEAN = {"is_noisy": False, "noise_kind": None, "noisy_part": None}
UNKNOWN = {"is_noisy": None, "noise_kind": None, "noisy_part": None}


@pytest.mark.parametrize(
    ("mended", "truth"),
    [
        ("A dog runs. The sky is blue.", CLEAN),
        ("A cat sleeps. The sky is blue.", {**FOREIGN, "noisy_part": 0}),
        ("A dog runs. A cat sleeps.", FOREIGN),
        ("A dog runs. A cat", UNKNOWN),  # a window of the sentence stayed
    ],
)
def test_of_a_noisy_sentence(mended, truth):
    assert truth_after(FOREIGN, 0, CAPTION, mended) == truth


@pytest.mark.parametrize(
    ("kind", "known"), [("ncr", True), ("junk", True), (None, True), ("hard", False)]
)
def test_of_noise_without_a_sentence(kind, known):
    """A whole caption stays noisy; which sentence had the wrong word is not known."""
    fields = {"is_noisy": True, "noise_kind": kind}
    expected = {**fields, "noisy_part": None} if known else UNKNOWN
    assert truth_after(fields, 0, CAPTION, "A dog runs.") == expected


@pytest.mark.parametrize("part", [7, -1, "1", None, 1.0])
def test_a_number_that_is_none_is_noise_of_the_whole(part):
    assert truth_after({**FOREIGN, "noisy_part": part}, 0, CAPTION, "A dog runs.")["is_noisy"]


def test_a_clean_caption_stays_clean():
    assert truth_after({"is_noisy": False}, 0, CAPTION, "A dog runs.") == CLEAN
    assert truth_after({}, 0, CAPTION, "A dog runs.") == UNKNOWN


@pytest.mark.parametrize("fields", [FOREIGN, {"is_noisy": True, "noise_kind": "ncr"}, CLEAN])
def test_of_another_text_nothing_is_known(fields):
    """Captions that were shifted back, or that a person has written."""
    for text in ("A ship.", "A dog runs. A ship."):
        assert truth_after(fields, 0, CAPTION, text) == UNKNOWN


def test_of_several_captions_each_has_its_own():
    fields = {"is_noisy": [False, True, True], "noisy_part": [None, 1, None], "noise_kind": "x"}
    originals = {1: CAPTION, 2: "A bird. A fish."}
    mended = {1: "A dog runs. The sky is blue."}
    assert exported_truth(fields, originals, mended) == {
        "is_noisy": [False, True], "noise_kind": [None, "x"], "noisy_part": [None, None],
        "original_is_noisy": [True, True], "original_noise_kind": ["x", "x"],
        "original_noisy_part": [1, None],
    }  # fmt: skip
    assert exported_truth(fields, originals, {}) == {
        "is_noisy": [True, True], "noisy_part": [1, None],
    }  # fmt: skip
