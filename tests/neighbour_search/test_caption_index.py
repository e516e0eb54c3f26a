"""The captions closest to an image: in every layout, none twice, its own left out."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.neighbour_search import blocks as blocks_module
from ncclean.neighbour_search import caption_index
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.caption_index import CaptionIndex, caption_digest
from ncclean.storage.array_files import ArrayFolder

DIM = 16


def unit(rows, seed):
    vectors = np.random.default_rng(seed).standard_normal((rows, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def corpus(folder, layout, images, texts, captions, uids=None, group=64):
    """The same pairs in any of the layouts of docs/embeddings.md, in two files."""
    folder.mkdir()
    uids = uids or [f"u{row}" for row in range(len(images))]
    half = len(images) // 2
    for number, rows in enumerate((slice(0, half), slice(half, None))):
        facts = {"uid": uids[rows], "caption": captions[rows]}
        if layout == "clip-retrieval":
            for name, side in (("img_emb", images), ("text_emb", texts)):
                (folder / name).mkdir(exist_ok=True)
                np.save(folder / name / f"{name}_{number}.npy", side[rows])
            (folder / "metadata").mkdir(exist_ok=True)
            pq.write_table(pa.table(facts), folder / "metadata" / f"metadata_{number}.parquet")
        elif layout == "datacomp":
            pq.write_table(pa.table(facts), folder / f"{number}.parquet")
            np.savez(folder / f"{number}.npz", l14_img=images[rows], l14_txt=texts[rows])
        else:
            facts |= {"image_emb": list(images[rows]), "text_emb": list(texts[rows])}
            pq.write_table(pa.table(facts), folder / f"{number}.parquet", row_group_size=group)
    return embedded_blocks(resolve_embeddings([str(folder)]))


@pytest.mark.parametrize("layout", ["clip-retrieval", "datacomp", "vectors"])
def test_the_closest_captions_in_every_layout(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(blocks_module, "_LEAST_BLOCK_BYTES", 1)  # a block for each file
    images, texts = unit(300, 1), unit(300, 2)
    texts[250] = 0  # cannot be used: the rows after it keep their numbers
    captions = [f"caption {row}" for row in range(300)]
    captions[299] = "  Caption 7 "  # as another of another block
    texts[299] = texts[7]
    blocks = corpus(tmp_path / "e", layout, images, texts, captions)
    assert len(blocks) == 2
    index = CaptionIndex.build(blocks, ArrayFolder(str(tmp_path / "work")))
    for row in (0, 7, 200, 260):
        [place] = index.rows_of(f"u{row}")
        image = index.image(place)
        np.testing.assert_allclose(image, images[row], atol=2e-3)
        assert place.caption == caption_digest(captions[row].upper())
        near = index.nearest(image, 5, [place.caption])
        cosines = texts.astype(np.float32) @ images[row].astype(np.float32)
        cosines[[row, 250, 299]] = -1
        if row == 7:
            cosines[299] = -1
        best = np.argsort(-cosines)[:5]
        assert [one.text.strip().lower() for one in near] == [captions[at] for at in best]
        np.testing.assert_allclose([one.similarity for one in near], cosines[best], atol=2e-3)
    assert index.rows_of("nobody") == []
    near = [one.text.strip().lower() for one in index.nearest(texts[7].astype(np.float32), 3)]
    assert near.count("caption 7") == 1  # of two blocks


def test_lists_find_most_of_what_all_captions_have(tmp_path, monkeypatch):
    monkeypatch.setattr(caption_index, "EXACT_BELOW", 1000)
    rng = np.random.default_rng(0)
    centres = unit(40, 3).astype(np.float32)
    texts = centres[rng.integers(0, 40, 4000)] + 0.1 * rng.standard_normal((4000, DIM))
    texts = (texts / np.linalg.norm(texts, axis=1, keepdims=True)).astype(np.float16)
    blocks = corpus(tmp_path / "e", "clip-retrieval", texts, texts, [str(n) for n in range(4000)])
    work = ArrayFolder(str(tmp_path / "work"))
    index = CaptionIndex.build(blocks, work)
    assert len(work.load("caption-lists")["centroids"]) > 32
    found = 0
    for row in range(0, 4000, 100):
        near = index.nearest(texts[row].astype(np.float32), 5)
        exact = np.argsort(-(texts.astype(np.float32) @ texts[row].astype(np.float32)))[:5]
        found += len({one.text for one in near} & {str(at) for at in exact})
    assert found >= 0.95 * 200


def test_an_interrupted_index_goes_on_and_broken_shards_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_module, "_LEAST_BLOCK_BYTES", 1)
    images, texts = unit(100, 1), unit(100, 2)
    blocks = corpus(tmp_path / "e", "clip-retrieval", images, texts, [str(n) for n in range(100)])
    (tmp_path / "e" / "text_emb" / "text_emb_1.npy").write_bytes(b"broken")
    work = ArrayFolder(str(tmp_path / "work"))

    class Interrupts:
        def say(self, text): ...

        def advance(self, done, total, unit, **facts):
            if done == 1 and "caption-lists" in work.names():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CaptionIndex.build(blocks, work, Interrupts())
    made = (tmp_path / "work" / "caption-rows-0.arrays").stat().st_mtime_ns
    index = CaptionIndex.build(blocks, work)
    assert (tmp_path / "work" / "caption-rows-0.arrays").stat().st_mtime_ns == made
    assert len(index.nearest(images[0].astype(np.float32), 60)) == 50
    assert index.rows_of("u60") == []


def test_an_image_with_several_captions_is_found_by_each(tmp_path):
    images, texts = unit(4, 1), unit(4, 2)
    images[1] = images[0]
    uids = ["a", "a", "b", "c"]
    blocks = corpus(tmp_path / "e", "vectors", images, texts, ["1", "2", "3", None], uids)
    index = CaptionIndex.build(blocks, ArrayFolder(str(tmp_path / "work")))
    rows = index.rows_of("a")
    assert {row.caption for row in rows} == {caption_digest("1"), caption_digest("2")}
    near = index.nearest(index.image(rows[0]), 5, {row.caption for row in rows})
    assert [one.text for one in near] == ["3"]  # and none that is missing
