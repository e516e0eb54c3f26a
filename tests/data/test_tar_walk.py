"""Members of a tar by its headers: those that tarfile finds, and no more than is there."""

import gzip
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.data import tar_ranges, tar_walk
from ncclean.data.images.as_tar import open_as_tar
from ncclean.data.shards import resolve_shards
from ncclean.data.sources import resolve_sources
from ncclean.data.tar_ranges import RangeWriter, from_start, local_tar
from ncclean.data.tar_walk import TAR_ERRORS, TarWalk, ordinary_header, pax_records
from ncclean.errors import ShardError
from tests import attacks, hostile

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


# Shards as uncompressed local tars, and byte ranges of them copied.

DATA = hostile.tar_bytes(
    [*hostile.sample("a", hostile.JPEG), ("zeros.bin", bytes(3 << 20)), ("b.txt", b"last")]
)


def opened(shard):
    return lambda: open_as_tar(shard)


def write(folder, data, name="s.tar"):
    (folder / name).write_bytes(data)
    return resolve_shards([str(folder / name)])[0]


def test_a_compressed_tar_is_unpacked_as_far_as_it_can_be(tmp_path):
    """Its runs of zeros are holes, which need no room."""
    problems = []
    with local_tar(opened(write(tmp_path, gzip.compress(DATA))), False, problems) as file:
        assert from_start(file).read() == DATA
    assert problems == []
    cut = write(tmp_path, gzip.compress(DATA)[:-100], "cut.tar")
    with local_tar(opened(cut), False, problems) as file:
        data = from_start(file).read()
    assert DATA.startswith(data)
    assert len(data) > len(DATA) // 2
    assert "cannot be read to its end" in problems[0]


def test_a_plain_tar_is_itself_and_a_folder_becomes_one(tmp_path):
    with local_tar(opened(write(tmp_path, DATA)), False, []) as file:
        assert file.name == str(tmp_path / "s.tar")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x.jpg").write_bytes(hostile.JPEG)
    (tmp_path / "f" / "x.txt").write_text("words")
    [folder] = resolve_sources([str(tmp_path / "f")])
    with local_tar(opened(folder), False, []) as file:
        assert b"x.jpg" in from_start(file).read()


def test_what_cannot_be_opened_says_why(tmp_path):
    with (
        pytest.raises(ShardError, match="Zstandard"),
        local_tar(opened(write(tmp_path, b"\x28\xb5\x2f\xfd" * 9)), False, []),
    ):
        pass
    gone = write(tmp_path, DATA)
    (tmp_path / "s.tar").unlink()
    with pytest.raises(ShardError, match="No such file"), local_tar(opened(gone), False, []):
        pass


def test_zeros_behind_a_shard_end_but_not_what_they_separate(monkeypatch, tmp_path):
    """They are counted in one piece: holes of less than the bound are copied with what follows."""
    monkeypatch.setattr(tar_ranges, "_MOST_PADDING", 4096)
    monkeypatch.setattr(tar_ranges, "_BUFFER_BYTES", 1024)
    pieces = (bytes(3072) + b"x" * 1024) * 3
    for rest, copied in ((pieces, len(pieces)), (bytes(9000), 4096)):
        (tmp_path / "s.tar").write_bytes(b"begin" + rest)
        sink = io.BytesIO()
        writer = RangeWriter(sink)
        with open(tmp_path / "s.tar", "rb") as source:
            writer.read_from(source)
            writer.copy(0, 5)
            writer.copy_rest(5)
        assert sink.getvalue() == b"begin" + rest[:copied]
