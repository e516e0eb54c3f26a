"""Entries without a text in lists of captions: a row each, from every layout, and no sample."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ncclean
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from tests.pipelines.captions.sources import score, write_tar

pytestmark = pytest.mark.usefixtures("rough_shifts")

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
