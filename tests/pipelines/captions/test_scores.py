"""Several captions of an image: from the shards to scores, neighbours and selections."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from ncclean_pipelines.neighbours import Neighbours
from ncclean_pipelines.select import Select

import ncclean
from ncclean.base.schema import PLACE_COLUMNS
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.scoring.clip_loss import neg_clip_loss
from tests.pipelines.captions.sources import KEYS, LAYOUTS, score, write_parquet, write_tar

pytestmark = pytest.mark.usefixtures("rough_shifts")


def test_a_row_for_each_caption_that_is_there(pairs, table):
    expected = [
        (key, number, KEYS[number > 0], text)
        for key, _, caption, more in pairs
        for number, text in enumerate([caption, *more])
    ]
    columns = ("key", "caption_number", "caption_key", "text")
    found = list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    assert found == expected
    assert pc.all(pc.equal(table.column("status"), "ok")).as_py()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_caption_has_the_cosine_that_it_has_alone(layout, pairs, table, tmp_path):
    alone = [(key, image, more[0], []) for key, image, _, more in pairs if more]
    score(LAYOUTS[layout](alone, tmp_path / "alone"), tmp_path / "a.parquet", None)
    one = pq.read_table(tmp_path / "a.parquet").column("similarity").to_numpy()
    same = table.filter(pc.equal(table.column("caption_number"), 1)).column("similarity")
    assert np.allclose(one, same.to_numpy(), atol=2e-6)


def test_layouts_agree(pairs, table, tmp_path):
    score(write_parquet(pairs, tmp_path / "p"), tmp_path / "s.parquet", block_size=60)
    other = pq.read_table(tmp_path / "s.parquet")
    for name in set(table.column_names) - {"uid", *PLACE_COLUMNS}:
        assert other.column(name).equals(table.column(name)), name


def test_captions_of_an_image_are_no_candidates_of_each_other(scored, table):
    """From the exported embeddings, with what shares an image taken out by hand."""
    folder = scored / "embeddings"
    image = torch.from_numpy(np.load(folder / "img_emb" / "img_emb_0.npy")).float()
    text = torch.from_numpy(np.load(folder / "text_emb" / "text_emb_0.npy")).float()
    keys = np.array(table.column("key").to_pylist())
    blocks = table.column("block").to_numpy()
    assert blocks.max() == 2
    for block in range(3):
        rows = np.flatnonzero(blocks == block)
        cosines = image[rows] @ text[rows].T
        same = torch.from_numpy(keys[rows][:, None] == keys[rows]).fill_diagonal_(False)
        assert same.any()
        cosines[same] = -torch.inf
        losses = neg_clip_loss(cosines, float(_metadata(scored)["scale"]))
        found = table.column("neg_clip_loss").to_numpy()[rows]
        assert np.allclose(found, losses.numpy(), atol=1e-5)
        ranks = (cosines > cosines.diagonal()[:, None]).sum(dim=1).numpy()
        assert (table.column("i2t_rank").to_numpy()[rows] == ranks).all()


def _metadata(folder):
    metadata = pq.read_metadata(folder / "s.parquet").metadata
    return {name.decode(): value.decode() for name, value in metadata.items()}


def test_embeddings_keep_captions_apart(scored, table, tmp_path):
    settings = {"scale": float(_metadata(scored)["scale"]), "shift": "shuffled"}
    ncclean.score(str(scored / "embeddings"), str(tmp_path / "e.parquet"), block_size=60,
                  **settings)  # fmt: skip
    other = pq.read_table(tmp_path / "e.parquet")
    for name in ("key", "row", "caption_number", "caption_key", "text", "block", "i2t_rank"):
        assert other.column(name).equals(table.column(name)), name
    for name in ("neg_clip_loss", "noise_probability"):
        assert np.allclose(other.column(name), table.column(name), atol=5e-4), name


def test_the_image_is_no_near_duplicate_of_itself(pairs, scored, tmp_path):
    out = tmp_path / "n.parquet"
    Neighbours(embeddings=[str(scored / "embeddings")], out=str(out)).run()
    found = pq.read_table(out)
    assert found.column("caption_number").to_pylist()[:3] == [0, 0, 1]
    grouped = found.filter(pc.is_valid(found.column("image_group")))
    images = {}
    for row in grouped.to_pylist():
        images.setdefault(row["image_group"], set()).add(row["key"])
    assert all(len(keys) > 1 for keys in images.values())
    selected = tmp_path / "d.parquet"
    Select(scores=[str(scored / "s.parquet")], out=str(selected), dedup=str(out)).run()
    kept = pq.read_table(selected)
    copies = pc.sum(pc.is_valid(found.column("pair_group"))).as_py()
    assert copies > 0
    assert len(found) - copies < len(kept) < len(found)


# Entries without a text in lists of captions: a row each, from every layout, and no sample.


LISTS = {
    "0": ["a red square", ""],
    "1": [None, "a blue circle", "  ", "a green star"],
    "2": ["", None],
    "3": ["two dogs"],
}
ROWS = [
    ("0", 0, "a red square", "ok", None),
    ("0", 1, None, "caption_missing", "empty"),
    ("1", 0, None, "caption_missing", None),
    ("1", 1, "a blue circle", "ok", None),
    ("1", 2, None, "caption_missing", "empty"),
    ("1", 3, "a green star", "ok", None),
    ("2", 0, None, "caption_missing", "empty"),
    ("2", 1, None, "caption_missing", None),
    ("3", 0, "two dogs", "ok", None),
]


def tar(images, folder):
    return write_tar([(key, images[key], LISTS[key], []) for key in LISTS], folder)


def parquet(images, folder):
    folder.mkdir()
    captions = pa.array(LISTS.values(), pa.list_(pa.string()))
    columns = {"key": list(LISTS), "jpg": [images[key] for key in LISTS], "captions": captions}
    pq.write_table(pa.table(columns), folder / "c.parquet")
    return folder


def karpathy(images, folder):
    folder.mkdir()
    entries = []
    for key, captions in LISTS.items():
        (folder / f"{key}.jpg").write_bytes(images[key])
        sentences = [{} if text is None else {"raw": text} for text in captions]
        entries.append({"filename": f"{key}.jpg", "sentences": sentences})
    (folder / "c.json").write_text(json.dumps({"images": entries}))
    return folder / "c.json"


@pytest.mark.parametrize("write", [tar, parquet, karpathy])
def test_each_is_a_row_that_is_neither_selected_nor_exported(write, pairs, tmp_path):
    images = {key: image for key, (_, image, *_) in zip(LISTS, pairs, strict=False)}
    source, scores = write(images, tmp_path / "source"), tmp_path / "s.parquet"
    summary = score(source, scores, None)
    assert (summary.rows, summary.ok) == (9, 4)
    table = pq.read_table(scores)
    names = ("key", "caption_number", "text", "status", "error")
    assert list(zip(*(table[name].to_pylist() for name in names), strict=True)) == ROWS
    scored = [value is not None for value in table["similarity"].to_pylist()]
    assert scored == [status == "ok" for *_, status, _ in ROWS]

    kept = ncclean.select(str(scores), str(tmp_path / "k.parquet"), where="true")
    assert kept.summary.dropped_by_reason == {"caption_missing": 5}
    best = ncclean.select(str(scores), str(tmp_path / "b.parquet"), best_caption=True)
    assert best.summary.kept == 3

    ncclean.export(str(tmp_path / "k.parquet"), str(tmp_path / "out"), shards=str(source))
    (shard,) = resolve_pairs([str(tmp_path / "out")])
    texts = {sample.key: sorted(sample.metadata["captions"]) for sample in read_samples(shard)}
    assert texts == {
        key: sorted(text for text in LISTS[key] if text and text.strip()) for key in "013"
    }
    assert [s.metadata["other_captions"] for s in read_samples(shard)] == [[], [], []]
