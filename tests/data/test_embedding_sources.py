"""Shards of embeddings in the layouts of others, and what is wrong with their pairs."""

import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.embeddings.layout import EmbeddingLayout
from ncclean.data.embeddings.pairs import embedding_dim, read_pairs
from ncclean.data.embeddings.units import find_embeddings, resolve_embeddings, vector_keys
from ncclean.data.member_samples import sample_uid
from ncclean.data.parquet_table import read_table
from ncclean.data.sources import are_embeddings, resolve_sources
from tests.http_server import served

# Written by clip-retrieval 2.45.0 itself (`NumpyWriter`, two partitions of 5 and 4 pairs).
CLIP_RETRIEVAL = Path(__file__).parent / "clip-retrieval-2.45"


def unit(rows, dim=8, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def datacomp(folder, name="a" * 8, rows=3, **matrices):
    """As DataComp publishes its pool: metadata, and one archive of four matrices beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {
        "uid": [f"{i:032x}" for i in range(rows)],
        "url": [f"https://example.org/{i}" for i in range(rows)],
        "text": [f"caption {i}" for i in range(rows)],
        "original_width": [640] * rows,
        "original_height": [480] * rows,
        "clip_l14_similarity_score": [0.2] * rows,
        "sha256": ["0"] * rows,
    }
    pq.write_table(pa.table(metadata), folder / f"{name}.parquet")
    keys = ("l14_img", "l14_txt", "b32_img", "b32_txt")
    defaults = {key: unit(rows, seed=i) for i, key in enumerate(keys)}
    np.savez(folder / f"{name}.npz", **{**defaults, **matrices})
    return folder


def two_clip_retrieval_parts(folder):
    """Three pairs of eight dimensions in each."""
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir()
    for number in (0, 1):
        for name in ("img_emb", "text_emb"):
            np.save(folder / name / f"{name}_{number}.npy", unit(3))
        table = pa.table({"caption": ["a", "b", "c"]})
        pq.write_table(table, folder / "metadata" / f"metadata_{number}.parquet")


def vectors(file, image, text, **columns):
    table = {"image_embedding": image, "text_embedding": text, **columns}
    pq.write_table(pa.table(table), file, row_group_size=2)
    return file


def only(sources, keys=None, **options):
    shards = resolve_embeddings([str(source) for source in sources])
    return read_pairs(shards[0], vector_keys(shards, keys), **options)


def test_one_vector_of_another_length_costs_its_own_pair(tmp_path):
    """Whether it is the longest or the shortest: most of them tell the width."""
    for length in (3, 9):
        image = [*unit(5).tolist(), [1.0] + [0.0] * (length - 1)]
        file = vectors(tmp_path / f"{length}.parquet", image, [*unit(6, seed=1).tolist()])
        pairs = only([file], ("image_embedding", "text_embedding"))
        assert pairs.ok.tolist() == [True] * 5 + [False]
        assert pairs.image.shape == (5, 8)


def test_clip_retrieval_as_it_writes_itself():
    first, second = resolve_sources([str(CLIP_RETRIEVAL)])
    assert [first.name, second.name] == ["metadata_0", "metadata_1"]
    assert (first.layout, first.rows, second.rows) == ("clip-retrieval", (0, 5), (0, 4))
    assert are_embeddings([first])
    assert embedding_dim([first], None) == 8
    pairs = read_pairs(second, None)
    facts = pairs.facts.to_pylist()
    assert facts[1] == {
        "uid": sample_uid({}, "metadata_1", "000000006"),
        "shard": "metadata_1",
        "key": "000000006",
        "row": 1,
        "text": "caption 6",
        "url": "https://example.org/6.jpg",
        "width": 64,
        "height": 54,
        "is_noisy": True,
        "noise_kind": None,
        "caption_number": 0,
        "caption_key": None,
    }
    assert pairs.ok.all()
    assert isinstance(pairs.image, np.memmap)
    stored = np.load(CLIP_RETRIEVAL / "img_emb" / "img_emb_1.npy")
    assert np.array_equal(pairs.image, stored)


def test_pairs_of_a_number_that_lacks_a_file_fail(tmp_path):
    shutil.copytree(CLIP_RETRIEVAL, tmp_path / "c")
    (tmp_path / "c/text_emb/text_emb_1.npy").unlink()
    good, bad = resolve_embeddings([str(tmp_path / "c")])
    assert len(read_pairs(good, None).ok) == 5
    assert read_pairs(bad, None).ok.tolist() == [False] * 4


def test_vectors_written_anew_are_another_version(tmp_path):
    shutil.copytree(CLIP_RETRIEVAL, tmp_path / "c")
    versions = {resolve_embeddings([str(tmp_path / "c")])[0].version}
    for name in ("img_emb/img_emb_0.npy", "text_emb/text_emb_0.npy"):
        os.utime(tmp_path / "c" / name, ns=(0, 1))
        versions.add(resolve_embeddings([str(tmp_path / "c")])[0].version)
    assert len(versions) == 3


def test_datacomp(tmp_path):
    datacomp(tmp_path, "b" * 8)
    datacomp(tmp_path, "a" * 8)
    shards = resolve_embeddings([str(tmp_path)])
    assert [shard.name for shard in shards] == ["a" * 8, "b" * 8]
    assert vector_keys(shards, None) == ("l14_img", "l14_txt")
    assert embedding_dim(shards, ("l14_img", "l14_txt")) == 8
    pairs = read_pairs(shards[0], ("b32_img", "b32_txt"))
    assert pairs.facts.to_pylist()[2] == {
        "uid": f"{2:032x}",
        "shard": "a" * 8,
        "key": "2",
        "row": 2,
        "text": "caption 2",
        "url": "https://example.org/2",
        "width": 640,
        "height": 480,
        "is_noisy": None,
        "noise_kind": None,
        "caption_number": 0,
        "caption_key": None,
    }
    assert np.array_equal(pairs.text, unit(3, seed=3))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 8)])
def test_a_parquet_with_two_vector_columns(tmp_path, kind, refused):
    image = pa.array(unit(5).astype(np.float32).tolist(), kind)
    # Rows count from 0 here: what is called so without a `shard` is of something else.
    uids = [0.0, 1.0, np.nan, 3.0, 4.0]  # as pandas has integers with gaps
    file = vectors(tmp_path / "v.parquet", image, image, uid=uids, row=[7] * 5)
    for place in (file, tmp_path):
        assert [one.layout.name for one in find_embeddings(str(place))] == ["vectors"]
    pairs = only([file])
    of_gap = sample_uid({}, "v", "2")
    assert pairs.facts.column("uid").to_pylist() == ["0", "1", of_gap, "3", "4"]
    assert pairs.facts.column("row").to_pylist() == [0, 1, 2, 3, 4]
    assert np.allclose(pairs.image, unit(5), atol=1e-6)
    refused(only, [file], ("image_embedding", "other"))


def statuses(pairs):
    counts = Counter(reason.value for reason, _ in pairs.problems.values())
    return counts + Counter(ok=int(pairs.ok.sum()))


def test_what_is_wrong_with_a_vector_is_said_of_its_row(tmp_path):
    whole = unit(6).astype(np.float32).tolist()
    image = [*whole[:1], None, [float("nan")] * 8, [0.0] * 8, whole[4][:7], [*whole[5]]]
    text = [*whole[:5], [float("inf")] * 8]
    pairs = only([vectors(tmp_path / "v.parquet", image, text)])
    assert pairs.ok.tolist() == [True] + 5 * [False]
    assert [(reason.value, what) for _, (reason, what) in sorted(pairs.problems.items())] == [
        ("embedding_missing", "no image embedding"),
        ("embedding_corrupt", "image: NaN or infinite values"),
        ("embedding_corrupt", "image: all values are 0"),
        ("embedding_corrupt", "image: 7 dimensions, others 8"),
        ("embedding_corrupt", "caption: NaN or infinite values"),
    ]
    assert statuses(pairs) == {"ok": 1, "embedding_missing": 1, "embedding_corrupt": 4}
    assert len(pairs.image) == len(pairs.text) == 1


def test_vectors_that_are_not_normalised_are(tmp_path):
    datacomp(tmp_path, l14_img=3 * unit(3).astype(np.float32))
    pairs = only([tmp_path])
    assert np.allclose(np.linalg.norm(pairs.image, axis=1), 1, atol=1e-6)
    assert pairs.text.dtype == np.float16  # they are, and stay as they are


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ({"l14_img": unit(2)}, "has 3 rows for 2 image embeddings"),
        ({"l14_txt": unit(4)}, "has 3 rows for 4 caption embeddings"),
        ({"l14_img": unit(3, 4)}, "has 4 dimensions for images, 8 for captions"),
        ({"l14_img": np.arange(3)}, "must be an (n, d) matrix of floats, got int64 (3,)"),
    ],
)
def test_matrices_that_do_not_match_the_metadata(tmp_path, matrices, message):
    """The pairs are known, so they have rows; which vector is whose is not."""
    shards = resolve_embeddings([str(datacomp(tmp_path, **matrices))])
    pairs = read_pairs(shards[0], ("l14_img", "l14_txt"))
    assert message in pairs.error
    assert len(pairs.facts) == 3
    assert statuses(pairs) == {"embedding_missing": 3}


def test_another_width_than_the_corpus(tmp_path):
    pairs = only([datacomp(tmp_path)], dim=512)
    assert "has 8 dimensions, the shards before it 512" in pairs.error


def test_files_that_are_missing_or_broken(tmp_path, refused):
    datacomp(tmp_path / "d")
    (tmp_path / "d" / "lonely.npz").write_bytes(b"PK")
    (tmp_path / "d" / ("a" * 8 + ".npz")).unlink()
    broken, alone = sorted(resolve_embeddings([str(tmp_path / "d")]), key=lambda s: s.name)
    assert read_pairs(broken, ("l14_img", "l14_txt")).error.startswith(broken.files[0])
    refused(read_pairs, alone, ("l14_img", "l14_txt"))


def test_names_of_vectors(tmp_path, refused):
    shards = resolve_embeddings([str(CLIP_RETRIEVAL)])
    assert vector_keys(shards, None) is None
    refused(vector_keys, shards, ("a", "b"))
    np.savez(tmp_path / "x.npz", mine_img=unit(2), mine_txt=unit(2), ids=np.arange(2))
    pq.write_table(pa.table({"uid": ["a", "b"]}), tmp_path / "x.parquet")
    shards = resolve_embeddings([str(tmp_path)])
    refused(vector_keys, shards, None)
    assert read_pairs(shards[0], ("mine_img", "mine_txt")).ok.all()


def test_large_files_are_several_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(EmbeddingLayout, "unit_rows", 2)
    (tmp_path / "e").mkdir()
    for name in ("img_emb", "text_emb", "metadata"):
        (tmp_path / "e" / name).mkdir()
    np.save(tmp_path / "e/img_emb/img_emb_0.npy", unit(7))
    np.save(tmp_path / "e/text_emb/text_emb_0.npy", unit(7, seed=1))
    metadata = pa.table({"caption": [str(i) for i in range(7)]})
    pq.write_table(metadata, tmp_path / "e/metadata/metadata_0.parquet", row_group_size=3)
    shards = resolve_embeddings([str(tmp_path / "e")])
    assert [shard.rows for shard in shards] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert shards[1].name == "metadata_0-2"
    pieces = [read_pairs(shard, None) for shard in shards]
    assert [row["text"] for piece in pieces for row in piece.facts.to_pylist()] == list("0123456")
    assert [row["row"] for piece in pieces for row in piece.facts.to_pylist()] == list(range(7))
    assert np.array_equal(np.concatenate([p.text for p in pieces]), unit(7, seed=1))
    file = vectors(tmp_path / "v.parquet", unit(5).tolist(), unit(5).tolist())
    assert [shard.rows for shard in resolve_embeddings([str(file)])] == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.usefixtures("behind_a_wall")
def test_objects_in_a_store(tmp_path):
    import fsspec

    store = fsspec.filesystem("memory")
    store.put(str(CLIP_RETRIEVAL), "/bucket/c", recursive=True)
    datacomp(tmp_path)
    store.put(str(tmp_path) + "/", "/bucket/d", recursive=True)
    try:
        for url, local in (("memory://bucket/c", CLIP_RETRIEVAL), ("memory://bucket/d", tmp_path)):
            there, here = only([url]), only([local])
            assert there.facts.equals(here.facts)
            assert np.array_equal(there.image, here.image)
    finally:
        store.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    "sources",
    [
        ["nowhere"],
        [str(CLIP_RETRIEVAL), "a.tar"],
        [str(CLIP_RETRIEVAL), str(CLIP_RETRIEVAL)],
        [str(CLIP_RETRIEVAL / "img_emb")],
    ],
)
def test_sources_that_cannot_be_used(sources, refused):
    refused(resolve_sources, sources)


def test_a_folder_above_the_embeddings_names_the_one_below(tmp_path, refused):
    shutil.copytree(CLIP_RETRIEVAL, tmp_path / "pool" / "metadata")
    refused(resolve_sources, [f"{tmp_path}/pool/"])


def in_archive(place, old, new):
    data = place.read_bytes()
    assert data.count(old)
    place.write_bytes(data.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"PK\x03\x04", b"PK\x03\x05"),  # not the magic number of a member
        # an unknown compression, of the first member
        (b"\x00\x00\x00\x00\x00\x00\x21", b"\x00\x00\x63\x00\x00\x00\x21"),
        (b"'shape': (3, 8), }", b"'shape': (3, 8), ("),  # never closed
        (b"(3, 8), }                 ", b"(99999999999999999, 8), } "),  # of any size
    ],
)
def test_an_archive_with_a_broken_member(tmp_path, old, new):
    """The other shards are read, and its own pairs have a reason."""
    datacomp(tmp_path, "a" * 8)
    datacomp(tmp_path, "b" * 8)
    in_archive(tmp_path / ("a" * 8 + ".npz"), old, new)
    shards = resolve_embeddings([str(tmp_path)])
    keys = vector_keys(shards, None)
    assert embedding_dim(shards, keys) == 8
    broken, whole = (read_pairs(shard, keys) for shard in shards)
    assert statuses(broken) == {"embedding_missing": 3}
    assert whole.ok.all()


@pytest.mark.parametrize("end", [b"(", b"\x00", b"{"])
def test_a_matrix_with_a_broken_header(tmp_path, end):
    two_clip_retrieval_parts(tmp_path)
    in_archive(tmp_path / "img_emb" / "img_emb_0.npy", b"}", end)
    shards = resolve_embeddings([str(tmp_path)])
    assert embedding_dim(shards, None) == 8
    broken, whole = (read_pairs(shard, None) for shard in shards)
    assert statuses(broken) == {"embedding_missing": 3}
    assert whole.ok.all()


@pytest.mark.parametrize("broken", ["img_emb", "text_emb"])
def test_a_broken_width_of_the_first_shard_is_not_that_of_the_corpus(tmp_path, broken):
    two_clip_retrieval_parts(tmp_path)
    in_archive(tmp_path / broken / f"{broken}_0.npy", b"(3, 8)", b"(3, 5)")
    shards = resolve_embeddings([str(tmp_path)])
    dim = embedding_dim(shards, None)
    assert dim == 8
    first, second = (read_pairs(shard, None, dim=dim) for shard in shards)
    assert statuses(first) == {"embedding_missing": 3}
    assert second.ok.all()


def test_metadata_that_is_not_utf8_makes_no_table_that_is_not(tmp_path):
    datacomp(tmp_path)
    path = tmp_path / ("a" * 8 + ".parquet")
    texts = pa.array([b"caption 0", b"capt\x98on 1", b"caption 2"]).view(pa.string())
    pq.write_table(pq.read_table(path).set_column(2, "text", texts), path)
    pairs = only([tmp_path], ("l14_img", "l14_txt"))
    pairs.facts.validate(full=True)
    assert pairs.facts.column("text").to_pylist() == ["caption 0", "capt\ufffdon 1", "caption 2"]
    assert pairs.ok.all()


def test_a_list_of_one_caption_is_the_text_of_its_vector(tmp_path):
    captions = [["a cat"], ["a cat", "a dog"], [], None]
    image = pa.array(unit(4).astype(np.float32).tolist())
    file = vectors(tmp_path / "a.parquet", image, image, caption=captions)
    assert only([file]).facts["text"].to_pylist() == ["a cat", None, None, None]


def test_the_size_of_a_table_is_asked_until_the_store_answers(tmp_path):
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "t.parquet")
    sizes = []  # HEAD, then GET: http calls a file missing if both are refused

    def refuses(request):
        sizes.extend([request] * ("Range" not in request.headers))
        return "Range" not in request.headers and len(sizes) in (2, 3)

    with served(tmp_path, refuses) as url:
        assert len(read_table(f"{url}/t.parquet", None, None)) == 2
    assert len(sizes) == 4
