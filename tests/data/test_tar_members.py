"""Members written and read by their bytes, against tarfile's own."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.data.tar_members import (
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
