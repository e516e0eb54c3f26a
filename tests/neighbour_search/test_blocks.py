import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.base.progress import SILENT
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.errors import InputError
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.corpus import read_corpus
from ncclean.neighbour_search.stages import Stages
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder
from ncclean.storage.parts import write_embeddings

ROWS = np.eye(4, dtype=np.float16)[:3]


def metadata(rows, **changes):
    columns = {
        "uid": [f"u{i}" for i in range(rows)],
        "shard": ["s"] * rows,
        "key": [str(i) for i in range(rows)],
        "row": list(range(rows)),
        "caption": ["a dog"] * rows,
    }
    return pa.table({**columns, **changes})


def write(folder, number="0", image=ROWS, text=ROWS, table=None):
    write_embeddings(UPath(folder), number, image, text, table or metadata(len(image)))


def blocks_of(folder):
    return embedded_blocks(resolve_embeddings([str(folder)]))


def read(folder):
    return blocks_of(folder)[0].read()


def corpus(folder, work):
    stages = Stages(ArrayFolder(str(work)), InProcess(), SILENT)
    return read_corpus(stages, blocks_of(folder))


def test_files_are_read_in_numerical_order(tmp_path):
    for number in ("10", "9", "2"):
        write(tmp_path, number, table=metadata(3, uid=[f"{number}-{i}" for i in range(3)]))
    write(tmp_path, "3", ROWS[:0], ROWS[:0], metadata(0).cast(metadata(1).schema))
    found = read(tmp_path)
    uids = found.facts.column("uid").to_pylist()
    assert uids == [f"{number}-{i}" for number in (2, 9, 10) for i in range(3)]
    assert len(found.image) == len(found.text) == 9
    assert found.facts.column("text").to_pylist() == ["a dog"] * 9


def test_without_captions(tmp_path):
    write(tmp_path, table=metadata(3, caption=pa.nulls(3, pa.string())))
    assert read(tmp_path).facts.column("text").null_count == 3
    write(tmp_path, table=metadata(3).drop(["caption", "row"]))
    assert read(tmp_path).facts.column("text").null_count == 3


def test_float32_is_taken_and_rounded(tmp_path):
    exact = np.array([[0.6, 0.8]], np.float32)
    write(tmp_path, image=exact, text=exact)
    np.testing.assert_array_equal(read(tmp_path).image, exact.astype(np.float16))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": ROWS[:2]}, "metadata_0.parquet has 3 rows, but "),
        ({"table": metadata(2)}, "metadata_0.parquet has 2 rows, but "),
        ({"text": ROWS[:, :3]}, "has 4 dimensions for images, 3 for captions"),
        ({"image": ROWS.astype(np.int8)}, "must be an (n, d) matrix of floats, got int8"),
        ({"image": ROWS[0], "table": metadata(3)}, "matrix of floats, got float16 (4,)"),
        ({"image": ROWS[:0], "text": ROWS[:0], "table": metadata(0)}, "hold no usable pair"),
    ],
)
def test_unusable_embeddings_are_one_sentence(tmp_path, options, message):
    write(tmp_path, **options)
    with pytest.raises(InputError) as error:
        corpus(tmp_path, tmp_path / "work")
    assert message in str(error.value)


def test_pairs_without_usable_vectors_are_left_out(tmp_path):
    image = ROWS.copy()
    image[1] = np.nan
    write(tmp_path, image=image)
    found = read(tmp_path)
    assert found.left_out == 1
    assert found.facts.column("uid").to_pylist() == ["u0", "u2"]
    assert len(found.image) == len(found.text) == 2
    write(tmp_path, "1")
    assert read(tmp_path).left_out == 1  # of a block of two shards


def test_vectors_of_another_length_are_normalised(tmp_path):
    write(tmp_path, image=3 * ROWS.astype(np.float32))
    np.testing.assert_array_equal(read(tmp_path).image, ROWS)


def test_shards_of_two_models(tmp_path):
    write(tmp_path, "0")
    write(tmp_path, "1", np.eye(3, dtype=np.float16), np.eye(3, dtype=np.float16))
    with pytest.raises(InputError, match=r"has 3 dimensions, the shards before it 4"):
        read(tmp_path)


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(InputError, match=r"holds no embeddings: neither img_emb, text_emb"):
        read(tmp_path / "nowhere")
    write(tmp_path, "0")
    write(tmp_path, "1")
    os.remove(tmp_path / "text_emb" / "text_emb_1.npy")
    with pytest.raises(InputError, match=r"cannot read .*text_emb_1.npy: No such file"):
        read(tmp_path)
    (tmp_path / "text_emb" / "text_emb_1.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(InputError, match=r"text_emb_1.npy is not a .npy matrix"):
        read(tmp_path)
    write(tmp_path, "1")
    (tmp_path / "metadata" / "metadata_0.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"metadata_0.parquet cannot be read as Parquet"):
        read(tmp_path)


@pytest.mark.usefixtures("behind_a_wall")
def test_objects_are_read(tmp_path):
    import fsspec

    write(tmp_path)
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path), "/bucket/e", recursive=True)
    np.testing.assert_array_equal(read("memory://bucket/e").image, ROWS)
    store.rm("/bucket", recursive=True)
    assert pq.read_table(tmp_path / "metadata" / "metadata_0.parquet").num_rows == 3


def test_small_shards_are_one_block_and_large_ones_several(tmp_path, monkeypatch):
    for number in range(5):
        write(tmp_path, str(number))
    assert [len(block.shards) for block in blocks_of(tmp_path)] == [5]
    sizes = [shard.size for shard in resolve_embeddings([str(tmp_path)])]
    monkeypatch.setattr("ncclean.neighbour_search.blocks._LEAST_BLOCK_BYTES", 2 * max(sizes))
    blocks = blocks_of(tmp_path)
    assert [len(block.shards) for block in blocks] == [2, 2, 1]
    assert all(os.path.isabs(shard.url) for block in blocks for shard in block.shards)
    found = corpus(tmp_path, tmp_path / "work")
    assert len(found.pairs) == 15
    assert [len(found.distinct[side]) for side in ("image", "text")] == [3, 1]
    assert found.starts == [0, 6, 12, 15]
