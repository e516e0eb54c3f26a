"""Shards as uncompressed local tars, and byte ranges of them copied."""

import gzip
import io

import pytest

from ncclean.data import tar_ranges
from ncclean.data.images.as_tar import open_as_tar
from ncclean.data.shards import resolve_shards
from ncclean.data.sources import resolve_sources
from ncclean.data.tar_ranges import RangeWriter, from_start, local_tar
from ncclean.errors import ShardError
from tests import hostile

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
