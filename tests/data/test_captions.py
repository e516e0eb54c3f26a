"""The captions of shards of any layout, and those of a corpus that are chosen by number."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ncclean.data.captions import ChosenCaptions, error_of, read_captions
from ncclean.data.sources import resolve_sources
from tests import hostile


def texts(captions):
    return captions["text"].to_pylist()


def read(path, caption_key=None):
    (shard,) = resolve_sources([str(path)])
    return read_captions(shard, caption_key)


def test_of_a_tar(tmp_path):
    """Those of samples without an image count, and come last; blank ones do not."""
    members = [
        *hostile.sample("a", hostile.JPEG, "über".encode()),
        ("b.txt", b"no image"),
        *hostile.sample("c", hostile.JPEG, b"  "),
        ("d.json", b'{"caption": "one", "alt": "other"}'),
    ]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(members))
    assert texts(read(tmp_path / "s.tar")) == ["über", "one", "no image"]
    assert texts(read(tmp_path / "s.tar", "alt")) == ["other"]


def test_of_a_table_whose_images_are_elsewhere(tmp_path):
    (tmp_path / "t.csv").write_text("path,caption\nnowhere.jpg,one\ngone.jpg,two\n")
    assert texts(read(tmp_path / "t.csv")) == ["one", "two"]


def test_all_captions_of_an_image(tmp_path):
    """A corpus of five captions an image has five donors for each."""
    (tmp_path / "t.csv").write_text("path,caption\na.jpg,one\nb.jpg,two\na.jpg,three\n")
    assert texts(read(tmp_path / "t.csv")) == ["one", "three", "two"]
    members = [("d.jpg", hostile.JPEG), ("d.json", b'{"caption": ["one", " ", "two"]}')]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(members))
    assert texts(read(tmp_path / "s.tar")) == ["one", "two"]


def test_of_embeddings(tmp_path):
    vectors = pa.array([[1.0, 0.0]] * 4)
    columns = {"image": vectors, "text_vector": vectors, "caption": ["one", None, " ", "two"]}
    pq.write_table(pa.table(columns | {"alt": ["a", "b", "c", "d"]}), tmp_path / "e.parquet")
    assert texts(read(tmp_path / "e.parquet")) == ["one", "two"]
    assert texts(read(tmp_path / "e.parquet", "alt")) == ["a", "b", "c", "d"]


def test_of_a_shard_that_is_cut_short(tmp_path):
    members = [m for n in range(20) for m in hostile.sample(f"{n:02d}", hostile.JPEG, b"text")]
    data = hostile.tar_bytes(members)
    (tmp_path / "s.tar").write_bytes(data[: len(data) // 2])
    captions = read(tmp_path / "s.tar")
    assert 5 < len(captions) < 15
    assert "is cut short" in error_of(captions)
    (tmp_path / "s.tar").write_bytes(gzip.compress(data)[:-200])
    assert "is cut short" in error_of(read(tmp_path / "s.tar"))


def test_of_a_shard_that_is_gone(tmp_path, refused):
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(hostile.sample("a", hostile.JPEG)))
    (shard,) = resolve_sources([str(tmp_path / "s.tar")])
    (tmp_path / "s.tar").unlink()
    refused(read_captions, shard)


def test_chosen_among_shards():
    shards = [
        pa.chunked_array([texts], pa.large_string())
        for texts in (["a", "bb"], [], ["ccc", "", "é"])
    ]
    chosen = ChosenCaptions.among(shards, np.array([1, 2, 4]))
    assert [chosen.of(number) for number in (1, 2, 4)] == ["bb", "ccc", "é"]
    assert len(ChosenCaptions.among(shards, np.array([], int)).texts) == 0
