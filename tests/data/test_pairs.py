"""Numbers of images in a table of embeddings, and vectors of length 1."""

import json
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.base import stores
from ncclean.data.captions import names_there
from ncclean.data.embeddings.pairs import images_of, read_pairs, unit_vectors
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.data.embeddings.vectors import read_npy
from ncclean.data.inject import ImageSource, SampleEdit
from ncclean.data.moved_pairs import gather_moved
from ncclean.data.noise import CODES, KINDS, NoisePlan
from ncclean.data.samples import SkipReason
from ncclean.data.sources import resolve_sources
from tests.data.image_layouts import write_files, write_tar


def test_images_are_numbered_by_their_first_pair_in_the_order_of_the_rows():
    """Keys occur in three shards and far apart, and are those of two images each."""
    count = 20_000
    rng = np.random.default_rng(0)
    shard, key, uid = (rng.integers(0, most, count) for most in (3, 3_000, 2))
    facts = pa.table({
        "uid": [f"u{n}" for n in uid], "shard": [f"s{n}" for n in shard],
        "key": [f"k{n}" for n in key], "row": pa.array(key, pa.int32()),
        "caption_number": pa.array(rng.integers(0, 3, count), pa.int16()),
    })  # fmt: skip
    first: dict[tuple[int, ...], int] = {}
    images = enumerate(zip(uid, shard, key, strict=True))
    assert images_of(facts).tolist() == [first.setdefault(image, row) for row, image in images]


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_of_a_matrix_in_a_store(order):
    matrix = np.arange(80, dtype=np.float32).reshape(10, 8)
    with BytesIO() as file:
        np.save(file, np.asarray(matrix, order=order))
        stores.location("memory://vectors/a.npy").write_bytes(file.getvalue())
    assert np.array_equal(read_npy("memory://vectors/a.npy", (2, 5)), matrix[2:5])


def test_images_of_one_caption_each_have_no_numbers():
    facts = pa.table({
        "shard": ["s"] * 3, "key": list("abc"), "caption_number": pa.array([0] * 3, pa.int16()),
    })  # fmt: skip
    assert images_of(facts) is None


def pairs_of(folder, angles=(0.0,) * 5, **columns):
    """The facts of five pairs of a Parquet file with these columns and angles of images."""
    images = [[np.cos(angle), np.sin(angle)] for angle in angles]
    table = pa.table({**columns, "image_embedding": images, "text_embedding": [[1.0, 0.0]] * 5})
    pq.write_table(table, folder / "pairs.parquet")
    (shard,) = resolve_embeddings([str(folder)])
    return read_pairs(shard, ("image_embedding", "text_embedding")).facts


@pytest.mark.parametrize("name", ["image_path", "uid"])
def test_rows_of_one_image_are_its_captions(tmp_path, name):
    facts = pairs_of(tmp_path, **{name: ["a", "b", "a", "a", "b"]})
    assert facts["caption_number"].to_pylist() == [0, 0, 1, 2, 1]
    assert facts["row"].to_pylist() == [0, 1, 0, 0, 1]
    assert len(set(zip(facts["uid"].to_pylist(), facts["key"].to_pylist(), strict=True))) == 2
    assert images_of(facts).tolist() == [0, 1, 0, 0, 1]


def test_rows_without_a_name_or_with_another_uid_are_images_of_their_own(tmp_path):
    facts = pairs_of(tmp_path, uid=["1", "2", "", None, "2"], key=["a", "a", None, None, "b"])
    assert facts["caption_number"].to_pylist() == [0] * 5
    assert facts["row"].to_pylist() == list(range(5))
    assert facts["key"].to_pylist() == ["a", "a", "2", "3", "b"]


def test_rows_of_other_images_under_the_same_key_are_images_of_their_own(tmp_path):
    """clip-retrieval names no shards: a file of many tars has the same keys again and again."""
    angles = [0.0, 0.01, 1.0, 2.0, np.nan]  # an image embedded twice, two others, one unknown
    facts = pairs_of(tmp_path, angles, image_path=["a"] * 5)
    assert facts["key"].to_pylist() == ["a", "a", "2", "3", "a"]
    assert facts["caption_number"].to_pylist() == [0, 1, 0, 0, 2]
    assert facts["row"].to_pylist() == [0, 0, 2, 3, 0]
    assert len(set(facts["uid"].to_pylist())) == 3
    stated = pairs_of(tmp_path, angles, uid=["u"] * 5, key=["a"] * 5)
    assert set(stated["key"].to_pylist()) == {"a"}
    assert stated["caption_number"].to_pylist() == [0, 1, 0, 0, 2]
    assert images_of(stated).tolist() == [0, 0, 2, 3, 0]


def test_numbers_of_captions_that_the_metadata_states_are_kept(tmp_path):
    facts = pairs_of(tmp_path, key=list("aabba"), caption_number=[1, 0, None, None, 7])
    assert facts["caption_number"].to_pylist() == [1, 0, 0, 1, 7]
    assert facts["row"].to_pylist() == [0, 0, 2, 2, 0]


def test_vectors_are_scaled_and_those_that_cannot_be_are_named():
    matrix = np.array([[3, 4], [0, 0], [np.nan, 1], [0, 2], [np.nan, np.nan]], np.float32)
    problems: dict[int, tuple[SkipReason, str]] = {}
    lengths = np.array([2, 2, 2, 2, -1])
    found = unit_vectors(matrix, "image", lengths, problems)
    assert found[[0, 3]] == pytest.approx(np.array([[0.6, 0.8], [0, 1]]))
    assert problems == {
        1: (SkipReason.EMBEDDING_CORRUPT, "image: all values are 0"),
        2: (SkipReason.EMBEDDING_CORRUPT, "image: NaN or infinite values"),
        4: (SkipReason.EMBEDDING_MISSING, "no image embedding"),
    }


# What is there, for whoever asked for a caption that is not.

PAIRS = [("a", b"image", "one"), ("b", b"image", "two")]


@pytest.mark.parametrize(
    ("write", "names"), [(write_tar, ["jpg", "txt"]), (write_files, ["jpg", "json", "txt", "url"])]
)
def test_extensions_and_fields_of_json(tmp_path, write, names):
    (shard,) = resolve_sources([str(write(PAIRS, tmp_path / "s"))])
    assert sorted(names_there(shard)) == names


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_columns_of_a_table(tmp_path, ending):
    path = tmp_path / f"t.{ending}"
    row = {"file_name": "a.jpg", "Legend": "one"}
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row) if ending == "jsonl" else "file_name,Legend\na.jpg,one\n")
    (shard,) = resolve_sources([str(path)])
    assert [name.lower() for name in names_there(shard)] == ["file_name", "legend"]


def test_some_of_many_and_none_of_what_cannot_be_read(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"file_name": "a", **{f"n{n}" * 40: 1 for n in range(99)}}))
    (shard,) = resolve_sources([str(path)])
    names = names_there(shard)
    assert (len(names), names[-1]) == (21, "...")
    assert max(map(len, names)) <= 60
    (tmp_path / "x.tar").write_bytes(b"no tar" * 200)
    (broken,) = resolve_sources([str(tmp_path / "x.tar")])
    assert names_there(broken) == []


# Which pair gets whose caption or image, of two shards with three pairs each.

STARTS = np.array([0, 3, 6])


def texts(captions):
    return pa.chunked_array([captions], pa.large_string())


def index(captions, hashes):
    """A shard whose pair n has its image in the bytes 1000 n to 1000 n + 100 * (n + 1)."""
    begin = 1000 * np.arange(3)
    end = begin + 100 * np.arange(1, 4)
    return texts(captions), pa.table({"hash": hashes, "begin": begin, "end": end})


def gather(plan, shards, donors=()):
    images = [
        table.append_column("url", [[f"{number}.tar"] * len(table)])
        for number, (_, table) in enumerate(shards)
    ]
    moved = pa.concat_tables(images).take(plan.images_moved)
    return gather_moved(plan, STARTS, np.arange(6), 0, [one for one, _ in shards], donors, moved)


SHARDS = [index(["one", "two", "three"], [1, 2, 3]), index(["four", "two", "six"], [4, 5, 1])]


def moved(kind, images=None, captions=None, donors=()):
    """The plan in which the pairs named move; `kind` is of all that do."""
    sources = {"image_source": images or {}, "caption_source": captions or {}}
    arrays = {name: np.arange(6) for name in sources}
    code = np.zeros(6, np.int8)
    for name, changes in sources.items():
        for pair, source in changes.items():
            arrays[name][pair], code[pair] = source, KINDS.index(kind) + 1
    plan = NoisePlan(**arrays, images=np.arange(6), code=code, planned={})
    return plan, gather(plan, SHARDS, donors)


def test_an_image_comes_from_the_pair_that_the_plan_names():
    """Pair 0 has the image of pair 4, of another shard; 0 and 5 have the same bytes."""
    plan, gathered = moved("decl", images={0: 4, 4: 2, 2: 5, 5: 0})
    first, same = gathered.edits_of(0)
    assert first == {
        0: SampleEdit(("decl",), image=ImageSource("1.tar", 1000, 1200)),
        2: SampleEdit(("decl",), image=ImageSource("1.tar", 2000, 2300)),
    }
    assert same == {}
    second, same = gathered.edits_of(1)
    assert second == {1: SampleEdit(("decl",), image=ImageSource("0.tar", 2000, 2300))}
    assert same == {"decl": 1}
    assert plan.images_moved.tolist() == [0, 2, 4, 5]


def test_a_caption_comes_from_the_pair_that_the_plan_names():
    _, gathered = moved("ncr", captions={1: 5, 5: 4, 4: 1})
    assert gathered.edits_of(0) == ({1: SampleEdit(("ncr",), ("six",))}, {})
    edits, same = gathered.edits_of(1)
    assert edits == {2: SampleEdit(("ncr",), ("two",))}
    assert same == {"ncr": 1}  # "two" again


def test_a_caption_of_a_donor_that_is_the_same_is_clean():
    """Of two shards of donors with two and one captions, numbered after the six of the corpus."""
    outside = [texts(["far", "two"]), texts(["away"])]
    _, gathered = moved("donor", captions={1: 7, 2: 8, 3: 6, 5: 8}, donors=outside)
    assert gathered.edits_of(0) == ({2: SampleEdit(("donor",), ("away",))}, {"donor": 1})
    edits, same = gathered.edits_of(1)
    assert edits == {0: SampleEdit(("donor",), ("far",)), 2: SampleEdit(("donor",), ("away",))}
    assert same == {}


def with_partners(kind, partners, captions):
    """The edits when captions take a sentence from another, in two shards of three pairs each."""
    shards = [index(captions[:3], [1, 2, 3]), index(captions[3:], [4, 5, 6])]
    code = np.zeros(6, np.int8)
    code[list(partners)] = CODES.index(kind)
    plan = NoisePlan(
        np.arange(6), np.arange(6), np.arange(6), code, {}, np.array([*partners.values()])
    )
    gathered = gather(plan, shards)
    return gathered.edits_of(0), gathered.edits_of(1)


def test_a_sentence_comes_from_the_caption_that_the_plan_names():
    """As it was before the noise, if it takes one itself."""
    captions = ["A. One.", "Two.", "B. Three.", "Four.", "Two. Five.", "Two. Five."]
    (first, same), (second, same_in_second) = with_partners(
        "foreign_sentence", {1: 3, 3: 1, 4: 5}, captions
    )
    assert first == {1: SampleEdit(("foreign_sentence",), ("Four.",), noisy_parts=(0,))}
    assert second == {0: SampleEdit(("foreign_sentence",), ("Two.",), noisy_parts=(0,))}
    assert same == {}
    assert same_in_second == {"foreign_sentence": 1}  # has both sentences already


def test_an_added_detail_of_a_single_sentence_has_no_part():
    captions = ["A dog runs.", "A cat sits. It is red.", "x", "y", "z", "w"]
    (edits, _), _ = with_partners("added_detail", {0: 3, 1: 4}, captions)
    assert edits == {
        0: SampleEdit(("added_detail",), ("A dog runs and y.",)),
        1: SampleEdit(("added_detail",), ("A cat sits. It is red. z",), noisy_parts=(2,)),
    }
