"""Numbers of samples: counted from what is beside shards or in them, or estimated."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.counting import count_samples, estimate_samples
from ncclean.data.images.resolve import resolve_images
from ncclean.data.shards import resolve_shards
from tests import hostile


def shard(path, members):
    """A tar of (name, bytes), in their order; equal names stay."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def pairs(count, size=100):
    return [(f"{n:06}.{ending}", b"x" * size) for n in range(count) for ending in ("jpg", "txt")]


def counted(*paths):
    return count_samples(resolve_shards(map(str, paths))).samples


def test_a_pair_has_an_image_a_caption_and_a_key_of_its_own(tmp_path):
    members = [
        ("a.jpg", b""), ("a.txt", b""), ("b.jpg", b""), ("b.json", b""), ("only.jpg", b""),
        ("without.txt", b""), ("c.png", b""), ("c.txt", b""), ("a.jpg", b""), ("a.txt", b""),
    ]  # fmt: skip
    assert counted(shard(tmp_path / "0.tar", members)) == {"0": 3}


def test_pairs_are_those_of_the_caption_that_is_named(tmp_path):
    """Training without a selection ends where their count does."""
    ends = [["jpg", "txt", "alt"], ["jpg", "alt"], ["jpg", "alt"], ["jpg", "txt"], ["jpg"]]
    members = [(f"{n}.{end}", b"x") for n, several in enumerate(ends) for end in several]
    rows = [
        {"bytes": hostile.JPEG, "caption": caption, "alt": "x"} for caption in ("x", None, None)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    shards = [
        *resolve_shards([str(shard(tmp_path / "0.tar", members))]),
        *resolve_images([str(tmp_path / "t.parquet")]),
    ]
    counts = {key: count_samples(shards, key).samples for key in (None, "alt", "alt.lines")}
    assert counts[None] == {"0": 2, "t": 1}
    assert counts["alt"] == counts["alt.lines"] == {"0": 3, "t": 3}


def test_what_a_folder_states_of_its_shards_is_taken(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        shard(tmp_path / folder / "0.tar", pairs(2))
    shard(tmp_path / "a" / "1.tar", pairs(3))
    (tmp_path / "a" / "sizes.json").write_text(json.dumps({"0.tar": 7, "1.tar": "many"}))
    assert sorted(counted(tmp_path / "a").values()) == [3, 7]
    assert sorted(counted(tmp_path / "b").values()) == [2]


@pytest.mark.parametrize("stated", ["[1]", "{", "null"])
def test_a_file_that_states_nothing_is_passed_over(stated, tmp_path):
    shard(tmp_path / "0.tar", pairs(2))
    (tmp_path / "sizes.json").write_text(stated)
    assert counted(tmp_path / "0.tar") == {"0": 2}


def test_of_a_broken_shard_what_comes_before(tmp_path):
    path = shard(tmp_path / "0.tar", pairs(9, size=1000))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = count_samples(resolve_shards([str(path)]))
    assert 3 <= found.samples["0"] <= 5
    assert "unexpected end" in found.failed["0"]


def test_small_shards_are_estimated_exactly_and_large_ones_by_their_bytes(tmp_path):
    small = [shard(tmp_path / f"{n}.tar", pairs(10 + n)) for n in range(3)]
    assert estimate_samples(resolve_shards(map(str, small))) == 33
    large = [shard(tmp_path / f"large{n}.tar", pairs(1500, size=2000)) for n in range(7)]
    assert estimate_samples(resolve_shards(map(str, large))) == pytest.approx(10_500, rel=0.03)


def test_a_shard_that_cannot_be_read_is_estimated_as_none(tmp_path):
    (tmp_path / "0.tar").write_bytes(b"no tar" * 1000)
    assert estimate_samples(resolve_shards([str(tmp_path / "0.tar")])) == 0
