"""Members written and read by their bytes, against tarfile's own."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from ncclean.data.member_samples import Contents, hashed_uid, sample_uid, take_captions
from ncclean.data.sample_groups import split_name
from ncclean.data.samples import Sample, SkipReason
from ncclean.data.tar_ranges import (
    BLOCK,
    END_OF_ARCHIVE,
    add_member,
    member_bytes,
    read_content,
    read_member,
)
from ncclean.data.tar_walk import ordinary_header

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=150,
).filter(lambda name: not name.endswith("/") and name.strip("/"))


def archive(name: str, content: bytes, format: int, **header: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for field, value in header.items():
            setattr(info, field, value)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@settings(deadline=None)
@given(name=NAMES, content=st.binary(max_size=2000))
def test_written_as_tarfile_writes_it(name, content):
    raw = member_bytes(name, content)
    assert len(raw) % BLOCK == 0
    assert archive(name, content, tarfile.GNU_FORMAT).startswith(raw + END_OF_ARCHIVE)
    info, read = read_member(raw)
    assert (info.name, read) == (name.rstrip("/"), content)
    assert read_content(raw) == content


@settings(deadline=None)
@given(
    name=NAMES,
    content=st.binary(max_size=2000),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_read_whatever_wrote_it(name, content, format):
    try:
        whole = archive(name, content, format)
    except ValueError:  # too long for USTAR
        return
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        member = tar.next()
        raw = whole[member.offset : member.offset_data + len(content) + -len(content) % BLOCK]
        assert read_content(raw) == content
        assert read_member(raw)[0].name == member.name
        ordinary = ordinary_header(raw[:BLOCK])
        assert ordinary in (None, (member.name, member.size))


def test_the_owner_of_another_member_is_taken_over():
    like = tarfile.TarInfo("old")
    like.mode, like.mtime, like.uid, like.gid = 0o640, 1234567.9, 7, 8
    like.uname, like.gname = "ada", "staff"
    info, content = read_member(member_bytes("new.txt", b"words", like))
    assert (info.name, content) == ("new.txt", b"words")
    assert (info.mode, info.mtime, info.uid, info.gid) == (0o640, 1234567, 7, 8)
    assert (info.uname, info.gname) == ("ada", "staff")


@pytest.mark.parametrize(("field", "value"), [("uid", 8**8), ("gid", -1), ("mtime", -5)])
def test_numbers_that_no_octal_field_holds_become_zero(field, value):
    like = tarfile.TarInfo("old")
    setattr(like, field, value)
    info, _ = read_member(member_bytes("new", b"", like))
    assert getattr(info, field) == 0


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_added_members_have_neither_time_nor_owner(format):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        add_member(tar, "a.txt", b"words")
    assert buffer.getvalue() == archive("a.txt", b"words", format, mtime=0, uid=0)


@pytest.mark.parametrize(
    "change", [(156, b"5"), (257, b"xxxxx"), (345, b"p"), (0, b"\xc3\xa9"), (0, b"x" * 100)]
)
def test_headers_that_are_not_ordinary_are_left_to_tarfile(change):
    header = bytearray(member_bytes("a.txt", b"words")[:BLOCK])
    assert ordinary_header(bytes(header)) == ("a.txt", 5)
    place, value = change
    header[place : place + len(value)] = value
    assert ordinary_header(bytes(header)) is None


@given(st.text(alphabet="ab./_\n", max_size=12))
def test_splits_as_webdataset_does(name: str):
    key, extension = base_plus_ext(name)
    assert split_name(name) == ((key, extension) if key is not None else (None, ""))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("000.jpg", ("000", "jpg")),
        ("a.b/000.seg.png", ("a.b/000", "seg.png")),
        ("../x.txt", ("../x", "txt")),
        (".hidden", (None, "")),
        ("a/.hidden", ("a/", "hidden")),
        ("no_extension", (None, "")),
    ],
)
def test_names(name: str, expected: tuple[str | None, str]):
    assert split_name(name) == expected


# Captions of a sample: their numbers, and why one without any is rejected.


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
        ({"uid": 7.0}, "7"),
        ({"uid": ""}, None),
        ({"uid": True}, None),
        ({}, None),
    ],
)
def test_uids(metadata, uid):
    assert sample_uid(metadata, "s", "k") == (uid or hashed_uid("s", "k"))
    assert hashed_uid("s", "k") != hashed_uid("t", "k")
