"""Truth of mended captions: nobody evaluates a clean caption as noisy."""

import pytest

from ncclean.exporting.captions import exported_truth, truth_after

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
