"""Captions of a sample: their numbers, and why one without any is rejected."""

import pytest

from ncclean.data.member_samples import Contents, hashed_uid, sample_uid, take_captions
from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.samples import Sample, SkipReason
from ncclean.data.sources import resolve_pairs
from tests import hostile


def taken(*texts):
    sample = Sample(row=0, key="k")
    take_captions(sample, texts)
    return sample


def test_each_entry_of_a_list_and_each_name_is_a_caption():
    """One keeps its number when an empty one before it is filled in."""
    sample = taken(("alt", ["", "one", "  ", 7, "two"]), ("title", "three"), ("none", None))
    assert [(c.number, c.key, c.text, c.status.value, c.error) for c in sample.captions] == [
        (0, "alt", None, "caption_missing", "empty"), (1, "alt", "one", "ok", None),
        (2, "alt", None, "caption_missing", "empty"), (3, "alt", None, "caption_missing", None),
        (4, "alt", "two", "ok", None), (5, "title", "three", "ok", None),
        (6, "none", None, "caption_missing", None),
    ]  # fmt: skip
    assert sample.status is SkipReason.OK


def test_a_caption_ends_without_white_space():
    assert taken((None, [b" a dog\r\n", "\tcats "])).captions[0].text == "a dog"
    assert taken((None, "\tcats ")).caption == "cats"


@pytest.mark.parametrize(
    ("members", "keys", "has_caption"),
    [
        (("txt",), None, True),
        (("en",), None, False),
        (("en",), ("en", "de"), False),
        (("en", "de"), ("en", "de"), True),
    ],
)
def test_a_sample_waits_for_every_name_that_was_asked_for(members, keys, has_caption):
    contents = Contents(0, "k", keys)
    contents.members = dict.fromkeys(members, b"text")
    assert contents.has_caption == has_caption


def test_one_that_cannot_be_used_keeps_its_place_and_reason():
    sample = taken((None, [b"\xff", "nul \0", "fine"]))
    assert [c.status for c in sample.captions[:2]] == [SkipReason.CAPTION_NOT_TEXT] * 2
    assert [c.error for c in sample.captions] == ["not UTF-8", "contains NUL", None]
    assert sample.caption == "fine"


@pytest.mark.parametrize(
    ("texts", "status", "error"),
    [
        ([(None, " ")], SkipReason.CAPTION_MISSING, "empty"),
        ([(None, None)], SkipReason.CAPTION_MISSING, None),
        ([(None, ["", b"\xff"])], SkipReason.CAPTION_MISSING, "empty"),
        ([(None, [b"\xff", ""])], SkipReason.CAPTION_NOT_TEXT, "not UTF-8"),
        ([(None, [])], SkipReason.CAPTION_MISSING, None),
    ],
)
def test_without_a_caption_the_reason_is_that_of_the_first(texts, status, error):
    sample = taken(*texts)
    assert (sample.status, sample.error) == (status, error)


@pytest.mark.parametrize(
    ("metadata", "uid"),
    [
        ({"uid": "u"}, "u"),
        ({"uid": 7}, "7"),
        ({"uid": ""}, None),
        ({"uid": True}, None),
        ({}, None),
    ],
)
def test_uids(metadata, uid):
    assert sample_uid(metadata, "s", "k") == (uid or hashed_uid("s", "k"))
    assert hashed_uid("s", "k") != hashed_uid("t", "k")


def test_the_second_image_of_a_key_is_read_if_it_is_of_another_sample(tmp_path):
    """`a.JPG` without a caption, then `a.jpg` with one, as some cameras and editors leave them."""
    members = [("a.JPG", b"first"), ("a.jpg", b"second"), ("a.txt", b"a dog")]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(members))
    (tmp_path / "folder").mkdir()
    for name, data in members:
        (tmp_path / "folder" / name).write_bytes(data)
    for source in ("s.tar", "folder"):
        (shard,) = resolve_pairs([str(tmp_path / source)], SourceOptions())
        samples = sorted(read_samples(shard), key=lambda sample: sample.row)
        assert [s.status for s in samples] == [SkipReason.DUPLICATE_KEY, SkipReason.OK]
        assert (samples[1].image, samples[1].caption) == (b"second", "a dog")
