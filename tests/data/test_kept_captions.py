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


def test_a_mended_only_caption():
    """Whatever its number: samples that are not among the numbers have one."""
    kept = KeptCaptions({}, {"a": {0: "left"}})
    assert "a" in kept
    assert "b" not in kept
    only = [Caption(0, None, None), Caption(2, None, "whole")]
    assert kept.of_sample("a", only, {"is_noisy": True}) == {
        "caption": "left", "original_caption": "whole",
        "is_noisy": True, "original_is_noisy": True,
    }  # fmt: skip
    assert kept.of_sample("a", only, {}) == {"caption": "left", "original_caption": "whole"}
    assert kept.of_sample("a", [Caption(0, None, None)], {}) is None


def test_mended_captions_among_several():
    kept = KeptCaptions({"a": [3, 0], "b": [1, 3]}, {"a": {3: "th"}, "b": {3: "ree"}})
    assert kept.of_sample("a", CAPTIONS, {}) == {
        "caption": "th", "captions": ["th", "zero"], "other_captions": ["one"],
        "original_caption": "three", "original_captions": ["three", "zero"],
    }  # fmt: skip
    assert kept.of_sample("b", CAPTIONS, {}) == {
        "caption": "one", "captions": ["one", "ree"], "other_captions": ["zero"],
        "original_captions": ["one", "three"],
    }  # fmt: skip


def test_an_only_caption_is_mended_where_it_was_read_from():
    kept = KeptCaptions({"b": [0]}, {"a": {0: "left"}, "b": {0: "left"}}, ("alt", "x.y"))
    fields = {"Alt": "whole", "x": {"Y": "whole"}, "caption": "other", "n": 3}
    kept.mend_in("a", fields)
    assert fields == {"Alt": "left", "x": {"Y": "left"}, "caption": "other", "n": 3}
    for key in "bc":
        other = {"alt": "whole"}
        kept.mend_in(key, other)
        assert other == {"alt": "whole"}
    number = {"alt": 3, "x": []}
    kept.mend_in("a", number)
    assert number == {"alt": 3, "x": []}
    assert kept.members_of("a", ("txt", "alt", "json")) == ["txt", "alt"]
    assert kept.members_of("b", ("txt", "alt", "json")) == ["txt"]
    assert kept.members_of("a", ("json",)) == ["txt"]
