"""Chosen images of a shard: the same bytes that scoring saw."""

import gzip

import pytest

from ncclean.data.sample_images import pick_images
from ncclean.data.shards import resolve_shards
from ncclean.data.tar import TarSamples
from ncclean.errors import ShardError
from tests import hostile


@pytest.mark.parametrize("case", hostile.cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("compressed", [False, True])
def test_same_images_as_scoring_reads(tmp_path, case, compressed):
    data = hostile.tar_bytes(case.members)
    path = tmp_path / ("s.tar.gz" if compressed else "s.tar")
    path.write_bytes(gzip.compress(data) if compressed else data)
    (shard,) = resolve_shards([str(path)])
    expected = {s.key: s.image for s in TarSamples(shard) if s.image is not None}
    picked = dict(pick_images(shard, expected))
    assert picked == expected
    for key in list(expected)[:3]:
        assert dict(pick_images(shard, [key, "not there"])) == {key: expected[key]}


def test_a_broken_shard_gives_what_comes_before_and_raises(tmp_path):
    for broken in hostile.broken_shards():
        path = tmp_path / f"{broken.name}.tar"
        path.write_bytes(broken.data)
        (shard,) = resolve_shards([str(path)])
        readable = [key for key, status in broken.rows if status == "ok"]
        if broken.name not in ("cut_between", "garbage_inside"):  # tarfile takes these for an end
            with pytest.raises(ShardError):
                list(pick_images(shard, ["a", "b", "c"]))
        assert [key for key, _ in pick_images(shard, readable)] == readable


def test_reads_no_further_than_the_last_chosen(tmp_path):
    whole = hostile.tar_bytes([*hostile.sample("a", hostile.JPEG), *hostile.sample("b", b"x")])
    path = tmp_path / "s.tar"
    path.write_bytes(whole[: whole.index(b"b.jpg")] + b"\x55" * 512)
    (shard,) = resolve_shards([str(path)])
    assert dict(pick_images(shard, ["a"])) == {"a": hostile.JPEG}
