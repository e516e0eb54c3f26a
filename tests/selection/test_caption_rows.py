"""Selections of images with two captions: near-duplicates, draws, and exports of one of several."""

import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import csv
from upath import UPath

from ncclean.data.selection_reader import SelectionReader
from ncclean.data.sources import resolve_pairs
from ncclean.exporting.export import export_shards
from ncclean.exporting.out_layout import out_layout
from ncclean.selection.policy import Policy
from ncclean.selection.select import select

KEYS = [key for key in "abcd" for _ in range(2)]
NUMBERS = pa.array([0, 1] * 4, pa.int16())


def chosen(folder, dedup=None, **options):
    """The summary and the selection from a table of four images with two captions each."""
    table = pa.table({
        "uid": KEYS, "shard": ["t"] * 8, "key": KEYS, "caption_number": NUMBERS,
        "row": pa.array(["abcd".index(key) for key in KEYS], pa.int32()), "status": ["ok"] * 8,
        "similarity": pa.array(np.random.default_rng(0).random(8), pa.float32()),
    })  # fmt: skip
    pq.write_table(table, folder / "s.parquet")
    out = folder / "selection.parquet"
    summary = select([str(folder / "s.parquet")], UPath(out), Policy(**options), dedup=dedup)
    return summary, pq.read_table(out)


def test_draws_of_a_caption_share_its_rank(tmp_path):
    _, drawn = chosen(tmp_path, score="similarity", sample="soft-cap", size=40)
    ranks = Counter(zip(*(drawn[name].to_pylist() for name in
                          ("key", "caption_number", "caption_rank")), strict=True))  # fmt: skip
    assert sum(ranks.values()) == 40
    assert len(ranks) == 8
    assert {rank for _, _, rank in ranks} == {0, 1}
    for captions in ("all", "best", "sample"):
        reader = SelectionReader(str(tmp_path / "selection.parquet"), captions)
        best = sum(count for (_, _, rank), count in ranks.items() if rank == 0)
        assert reader.counts() == {"t": 40 if captions == "all" else best}


@pytest.mark.slow
def test_as_many_draws_as_are_asked_for(tmp_path):
    summary, drawn = chosen(tmp_path, score="similarity", sample="soft-cap", size=70_000, penalty=0)
    assert summary.drawn == len(drawn) == 70_000


@pytest.mark.parametrize("repeat", [False, True])
def test_a_caption_of_another_name_is_exported_from_a_table(tmp_path, repeat):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    columns = {"image": [buffer.getvalue()] * 4, "alt": ["w", "x", "y", "z"], "key": list("abcd")}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    keys = ["a", "a", "b", "d"]  # drawn, of one caption each
    selection = pa.table({
        "uid": keys, "shard": ["t"] * 4, "key": keys, "weight": pa.array([1.0] * 4, pa.float32()),
        "split": pa.nulls(4, pa.string()),
    })  # fmt: skip
    pq.write_table(selection, tmp_path / "selection.parquet")
    summary = export_shards(
        str(tmp_path / "selection.parquet"), resolve_pairs([str(tmp_path / "t.parquet")]),
        UPath(tmp_path / "out"), caption_key=("alt",), repeat=repeat,
    )  # fmt: skip
    assert (summary.samples, summary.missing) == (4, {})


def test_an_exported_image_has_the_scores_of_its_best_caption(tmp_path):
    """Caption 1 of the first image and caption 0 of the second are the best."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    columns = {"image": [buffer.getvalue()] * 2, "alt": [["v", "w"], ["x", "y"]], "key": ["a", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    rows = {
        "uid": ["a", "a", "b", "b"], "shard": ["t"] * 4, "key": ["a", "a", "b", "b"],
        "caption_number": pa.array([0, 1, 0, 1], pa.int16()),
        "row": pa.array([0, 0, 1, 1], pa.int32()), "status": ["ok"] * 4,
        "similarity": pa.array([0.25, 0.5, 0.75, 0.125], pa.float32()),
    }  # fmt: skip
    pq.write_table(pa.table(rows), tmp_path / "s.parquet")
    scores, selection = [str(tmp_path / "s.parquet")], tmp_path / "selection.parquet"
    select(scores, UPath(selection), Policy(where="true"))
    export_shards(
        str(selection), resolve_pairs([str(tmp_path / "t.parquet")]), UPath(tmp_path / "out"),
        scores=scores, columns=["similarity"], caption_key=("alt",),
    )  # fmt: skip
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        records = [json.load(tar.extractfile(m)) for m in tar if m.name.endswith(".json")]
    assert [(r["caption"], r["captions"], r["similarity"]) for r in records] == [
        ("w", ["w", "v"], 0.5),
        ("x", ["x", "y"], 0.75),
    ]


@pytest.mark.parametrize("source", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("layout", ["csv", "parquet"])
def test_each_row_of_an_exported_table_has_the_scores_of_its_own_caption(source, layout, tmp_path):
    """A row that holds a list of captions has those of the best."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg")
    (tmp_path / "t.csv").write_text("filepath,title\na.jpg,v\na.jpg,w\na.jpg,x\n")
    captions = pa.table({"filepath": ["a.jpg"], "captions": [["v", "w", "x"]]})
    pq.write_table(captions, tmp_path / "t.parquet")
    shards = resolve_pairs([str(tmp_path / source)])
    of_each = {"v": 0.25, "w": 0.75, "x": 0.5}
    table = pa.table({
        "uid": ["a"] * 3, "shard": [shards[0].name] * 3, "key": ["a"] * 3,
        "caption_number": pa.array([0, 1, 2], pa.int16()),
        "row": pa.array([0] * 3, pa.int32()), "status": ["ok"] * 3,
        "similarity": pa.array(of_each.values(), pa.float32()), "noise_kind": list(of_each),
    })  # fmt: skip
    scores = [str(tmp_path / "scores.parquet")]
    pq.write_table(table, scores[0])
    for least, kept in ((0, list("vwx")), (0.3, list("wx"))):
        selection, out = tmp_path / "kept.parquet", str(tmp_path / f"out-{least}")
        select(scores, UPath(selection), Policy(where=f"similarity > {least}"))
        export_shards(
            str(selection), shards, UPath(out), scores=scores, columns=["similarity", "noise_kind"],
            layout=out_layout(layout, out, shards),
        )  # fmt: skip
        (file,) = Path(out).glob(f"*.{layout}")
        written = csv.read_csv(file) if layout == "csv" else pq.read_table(file)
        expected = ["w"] if (source, layout) == ("t.parquet", "parquet") else kept
        assert written["noise_kind"].to_pylist() == expected
        assert written["similarity"].to_pylist() == [of_each[caption] for caption in expected]


@pytest.mark.parametrize("own", [None, "of its own"])
def test_a_caption_inside_of_a_field_is_one_row_of_a_csv(tmp_path, own):
    turns = [{"from": "human", "value": "Describe"}, {"from": "gpt", "value": "a dot"}]
    row = {"file_name": "0.jpg", "Conversations": turns} | ({"Caption": own} if own else {})
    Image.new("RGB", (8, 8)).save(tmp_path / "0.jpg")
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    shards = resolve_pairs([str(tmp_path / "t.jsonl")])
    selection = pa.table({
        "uid": ["0"], "shard": [shards[0].name], "key": ["0"],
        "weight": pa.array([1.0], pa.float32()), "split": pa.nulls(1, pa.string()),
    })  # fmt: skip
    pq.write_table(selection, tmp_path / "selection.parquet")
    out = str(tmp_path / "out")
    export_shards(
        str(tmp_path / "selection.parquet"), shards, UPath(out),
        caption_key="Conversations[1].value", layout=out_layout("csv", out, shards),
    )  # fmt: skip
    table = csv.read_csv(f"{out}/pairs.csv")
    assert [json.loads(text) for text in table["Conversations"].to_pylist()] == [turns]
    captions = {n: table[n].to_pylist() for n in table.column_names if n.lower() == "caption"}
    assert captions == ({"Caption": [own]} if own else {"caption": ["a dot"]})
