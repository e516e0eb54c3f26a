"""Which captions an exported sample has, and in which order."""

from ncclean.data.kept_captions import KeptCaptions
from ncclean.data.samples import Caption

CAPTIONS = [Caption(0, None, "zero"), Caption(1, None, "one"), Caption(3, None, "three")]


def test_the_best_comes_first_and_the_rest_apart():
    kept = KeptCaptions({"a": [3, 0], "b": [1]})
    assert kept.of_sample("a", CAPTIONS, {}) == {
        "caption": "three", "captions": ["three", "zero"], "other_captions": ["one"],
    }  # fmt: skip
    assert kept.of_sample("b", CAPTIONS, {}) == {
        "caption": "one", "captions": ["one"], "other_captions": ["zero", "three"],
    }  # fmt: skip


def test_a_sample_that_lacks_a_selected_caption_has_none():
    assert KeptCaptions({"a": [3, 2]}).of_sample("a", CAPTIONS, {}) is None


def test_truth_of_each_caption_follows_the_kept_ones():
    fields = {"is_noisy": [True, False, False, True], "noise_kind": "ncr", "other": [1, 2]}
    found = KeptCaptions({"a": [3, 1]}).of_sample("a", CAPTIONS, fields)
    assert found["is_noisy"] == [True, False]
    assert found.keys() == {"caption", "captions", "other_captions", "is_noisy"}


def test_of_the_members_of_a_sample():
    kept = KeptCaptions({"a": [1, 0]}, caption_key=("alts",))
    found = kept.of_members("a", {"json": b'{"alts": ["x", "y"]}', "txt": b"z"})
    assert found == {"caption": "y", "captions": ["y", "x"], "other_captions": []}
