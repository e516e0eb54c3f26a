"""The places of a tar's images: by key where keys are in order, else by an index that is kept."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from ncclean.data import image_index
from ncclean.data.image_index import ImageIndex, can_be_indexed
from ncclean.data.shards import resolve_shards
from ncclean.errors import ShardError
from tests.data.test_tar_seek import samples, tar


def shard(path, data):
    path.write_bytes(data)
    [resolved] = resolve_shards([str(path)])
    return resolved


@pytest.fixture
def walks(monkeypatch):
    """How often a tar was walked over."""
    count = []
    walk = ImageIndex._walk
    monkeypatch.setattr(ImageIndex, "_walk", lambda self: (count.append(1), walk(self)))
    return count


def test_a_tar_in_order_needs_no_walk(tmp_path, walks):
    wanted = samples(500, 8_000)
    index = ImageIndex(shard(tmp_path / "a.tar", tar(wanted)), tmp_path / "kept")
    for key, image in random.Random(0).sample(wanted, 20):
        assert index.read(key) == image
    assert not walks
    assert not list((tmp_path / "kept").glob("*"))


def test_another_tar_is_walked_over_once_and_the_index_is_kept(tmp_path, walks):
    wanted = samples(500, 8_000)
    random.Random(1).shuffle(wanted)
    ref = shard(tmp_path / "a.tar", tar(wanted))
    index = ImageIndex(ref, tmp_path / "kept")
    results: dict[str, bytes | None] = {}
    threads = [
        threading.Thread(target=lambda key=key: results.update({key: index.read(key)}))
        for key, _ in wanted[::50]
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == dict(wanted[::50])
    with pytest.raises(KeyError):
        index.read("nobody")
    assert walks == [1]
    again = ImageIndex(ref, tmp_path / "kept")
    assert again.read(wanted[7][0]) == wanted[7][1]
    assert walks == [1]
    # Another version of the tar has another index.
    other = shard(tmp_path / "a.tar", tar(wanted[:-1]))
    assert ImageIndex(other, tmp_path / "kept").read(wanted[250][0]) == wanted[250][1]
    assert walks == [1, 1]


def test_the_first_image_of_a_key_counts_and_a_large_one_is_told(tmp_path, monkeypatch):
    wanted = [("b", b"first" * 9), ("a", b"second" * 9), ("b", b"third" * 9), ("c", b"l" * 9000)]
    monkeypatch.setattr(image_index, "LARGEST_IMAGE", 5000)
    index = ImageIndex(shard(tmp_path / "a.tar", tar(wanted)), tmp_path)
    index._is_walked = False
    assert index.read("c") is None
    assert index.read("b") == b"first" * 9
    assert index.read("a") == b"second" * 9


def test_a_broken_tar_has_what_lies_before_the_break(tmp_path):
    wanted = samples(300, 8_000)
    random.Random(1).shuffle(wanted)
    data = tar(wanted)
    ref = shard(tmp_path / "a.tar", data[: len(data) // 2] + b"x" * 99)
    index = ImageIndex(ref, tmp_path / "kept")
    assert index.read(wanted[3][0]) == wanted[3][1]
    with pytest.raises(ShardError, match="unexpected end"):
        index.read(wanted[-3][0])
    assert not list((tmp_path / "kept").glob("*"))  # half an index is not kept


@pytest.mark.parametrize("damage", ["cut", "huge", "other"])
def test_a_damaged_index_is_made_anew(tmp_path, walks, damage):
    wanted = samples(500, 8_000)
    random.Random(1).shuffle(wanted)
    ref = shard(tmp_path / "a.tar", tar(wanted))
    ImageIndex(ref, tmp_path / "kept").read(wanted[250][0])
    [thread.join() for thread in threading.enumerate() if thread.name == "ncclean-index"]
    [file] = (tmp_path / "kept").glob("*.npz")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "other":
        file.write_bytes(b"no archive")
    else:
        np.savez(file, keys=np.frombuffer(b"a\0b", np.uint8), places=np.array([[0, 5]]))
    index = ImageIndex(ref, tmp_path / "kept")
    assert index.read(wanted[251][0]) == wanted[251][1]
    assert walks == [1, 1]


def test_compressed_tars_are_not_indexed(tmp_path):
    import gzip

    data = tar(samples(3, 500))
    assert can_be_indexed(shard(tmp_path / "a.tar", data))
    assert not can_be_indexed(shard(tmp_path / "b.tar.gz", gzip.compress(data)))
