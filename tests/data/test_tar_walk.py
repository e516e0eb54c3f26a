"""Members of a tar by its headers: those that tarfile finds, and no more than is there."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.data import tar_walk
from ncclean.data.tar_walk import TAR_ERRORS, TarWalk, ordinary_header, pax_records
from tests import attacks

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=["Cs"]),
    min_size=1,
    max_size=300,
)


@settings(deadline=None, max_examples=60)
@given(
    members=st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=6),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    is_seekable=st.booleans(),
)
def test_members_are_those_that_tarfile_finds(members, format, is_seekable):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            try:
                tar.addfile(info, io.BytesIO(data))
            except ValueError:  # too long for USTAR
                continue
    stream = io.BytesIO(buffer.getvalue())
    stream.seekable = lambda: is_seekable
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as tar:
        expected = [
            (one.name, one.offset, one.offset_data, tar.extractfile(one).read())
            for one in tar
            if one.isreg()
        ]
    walk = TarWalk(stream)
    assert [(one.name, one.begin, one.content, walk.read(one)) for one in walk] == expected


@pytest.mark.parametrize(
    "data", [b"", b"5", b"5 a=b", b"99 path=a", b"-1 a=b\n", b"3 a", b" a=b\n", b"0 a=b\n"]
)
def test_records_of_extended_headers_that_are_broken(data):
    if data:
        with pytest.raises(tarfile.ReadError):
            pax_records(data)
    else:
        assert pax_records(data) == {}
    assert pax_records(b"10 path=a\n\0\0") == {b"path": b"a"}


def test_a_header_with_a_wrong_checksum_is_not_ordinary():
    block = bytearray(attacks.header("a.txt", 5))
    assert ordinary_header(bytes(block)) == ("a.txt", 5)
    block[0] ^= 1
    assert ordinary_header(bytes(block)) is None
    with pytest.raises(TAR_ERRORS, match="checksum"):
        list(TarWalk(io.BytesIO(bytes(block) + attacks.END)))


def test_a_long_name_is_that_of_its_own_member_alone():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        link = tarfile.TarInfo("l" * 150)
        link.type, link.linkname = tarfile.SYMTYPE, "a.jpg"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("b.jpg"))
    (member,) = TarWalk(io.BytesIO(buffer.getvalue()))
    assert member.name == "b.jpg"
    assert member.begin == member.header


def test_a_sparse_member_is_called_by_its_own_name():
    """GNU tar gives the place of its map as the path."""
    records = {"path": "GNUSparseFile.7/a.jpg", "GNU.sparse.name": "a.jpg", "GNU.sparse.major": "1"}
    data = attacks.pax(records) + attacks.packed([("GNUSparseFile.7/a.jpg", b"0\n")])
    (member,) = TarWalk(io.BytesIO(data + attacks.END))
    assert (member.name, member.is_sparse) == ("a.jpg", True)


def test_zeros_behind_the_end_are_counted_from_there(monkeypatch):
    monkeypatch.setattr(tar_walk, "_MOST_PADDING", 4096)
    data = attacks.packed([("a.jpg", b"x" * 9000)]) + attacks.END
    assert len(list(TarWalk(io.BytesIO(data + bytes(3000))))) == 1
    with pytest.raises(TAR_ERRORS, match="far more zeros"):
        list(TarWalk(io.BytesIO(data + bytes(5000))))
