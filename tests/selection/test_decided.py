"""What people decided in a selection: with every filter, and in exports and batches of training."""

from __future__ import annotations

import datetime
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.select import decision_lines
from upath import UPath

from ncclean.base.schema import DECISIONS
from ncclean.data.decode import Preprocessing
from ncclean.data.options import LoaderOptions
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.shards import resolve_shards
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.exporting.export import export_shards
from ncclean.selection.decided import Decisions
from ncclean.selection.policy import Policy
from ncclean.selection.select import select
from ncclean.storage.decisions import (
    CORRECT,
    DROP,
    KEEP,
    NOTE,
    Decision,
    record_of,
    write_decisions,
)
from tests import hostile
from tests.selection.tables import table

TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def decided(path, *rows, reviewer="anna", time=TIME):
    """A file of decisions: `rows` are (uid, number, decision, caption)."""
    decisions = [
        Decision(uid, number, kind, caption, reviewer, time) for uid, number, kind, caption in rows
    ]
    columns = [one._asdict() for one in decisions]
    write_decisions(UPath(path), pa.Table.from_pylist(columns, DECISIONS))
    return str(path)


def chosen(folder, scores, *rows, dedup=None, **policy):
    """The summary, and the rows of the selection by key and number of the caption."""
    pq.write_table(scores, folder / "scores.parquet", row_group_size=50)
    out = folder / "selection.parquet"
    decisions = [decided(folder / "decisions.parquet", *rows)] if rows else []
    summary = select(
        [str(folder / "scores.parquet")], UPath(out), Policy(**policy), dedup=dedup,
        decisions=decisions,
    )  # fmt: skip
    rows = pq.read_table(out).to_pylist()
    return summary, {(row["key"], row.get("caption_number", 0)): row for row in rows}


def scores(rows=8, **columns):
    columns = {"uid": [f"u{n}" for n in range(rows)],
               "noise_probability": pa.array([n / rows for n in range(rows)], pa.float32()),
               **columns}  # fmt: skip
    return table(rows, **columns)


def test_a_note_alone_decides_nothing(tmp_path):
    policy = {"method": "noise-probability"}
    _, before = chosen(tmp_path, scores(), **policy)
    noted, after = chosen(
        tmp_path, scores(), ("u7", 0, NOTE, None), ("u0", 0, DROP, None), **policy
    )
    assert noted.decided == {"drop": 1}
    assert after.keys() == before.keys() - {("0000", 0)}
    assert Decisions.read([str(tmp_path / "decisions.parquet")], has_notes=True).by_pair.keys() == {
        ("u7", 0), ("u0", 0)
    }  # fmt: skip


def test_a_sample_is_drawn_from_what_decisions_leave(tmp_path):
    rows = [("u0", 0, DROP, None), ("u7", 0, CORRECT, "right")]
    summary, kept = chosen(
        tmp_path, scores(), *rows, score="noise_probability", sample="soft-cap", size=60, penalty=9
    )
    assert summary.drawn == 60
    assert ("0000", 0) not in kept
    drawn = pq.read_table(tmp_path / "selection.parquet").to_pylist()
    captions = {row["caption"] for row in drawn if row["uid"] == "u7"}
    assert captions == {"right"}  # of each draw


def test_a_kept_pair_without_the_score_is_not_drawn(tmp_path):
    losses = pa.array([None, 0.1], pa.float32())
    summary, kept = chosen(
        tmp_path, scores(2, neg_clip_loss=losses), ("u0", 0, KEEP, None), score="neg_clip_loss",
        sample="soft-cap", size=5,
    )  # fmt: skip
    assert (summary.drawn, kept.keys()) == (5, {("0001", 0)})
    assert summary.dropped_by_reason == {"not drawn": 1}


def test_what_people_keep_is_the_best_of_its_group_image_and_value(tmp_path):
    """The limits hold: one pair of a group, one caption of an image, `cap` pairs of a value."""
    similarity = pa.array([n / 10 for n in range(8)], pa.float32())
    worst = [("u0", 0, KEEP, None), ("u4", 0, CORRECT, "right")]
    halves = ["a"] * 4 + ["b"] * 4
    neighbours = {"uid": [f"u{n}" for n in range(8)], "pair_group": halves}
    pq.write_table(pa.table(neighbours), tmp_path / "neighbours.parquet")
    pairs = scores(similarity=similarity, half=halves)
    for policy in (
        {"dedup": str(tmp_path / "neighbours.parquet")},
        {"balance_by": "half", "cap": 1, "score": "similarity"},
        {"balance_by": "half", "cap": 1},
    ):
        _, kept = chosen(tmp_path, pairs, *worst, **policy)
        assert kept.keys() == {("0000", 0), ("0004", 0)}
    captions = {
        "uid": [f"u{n // 4 * 4}" for n in range(8)],
        "key": [f"000{n // 4 * 4}" for n in range(8)],
        "row": pa.array([n // 4 for n in range(8)], pa.int32()),
        "caption_number": pa.array([*range(4), *range(4)], pa.int16()),
    }
    pairs = scores(similarity=similarity, **captions)
    _, kept = chosen(tmp_path, pairs, *worst, best_caption=True)
    assert kept.keys() == {("0000", 0), ("0004", 0)}


def test_order_holds_with_decisions(tmp_path):
    scores = table(1000)
    rows = [(uid, 0, KEEP, None) for uid in scores["uid"].to_pylist()[::7]]
    _, kept = chosen(tmp_path, scores, *rows)
    assert [key for key, _ in kept] == scores["key"].to_pylist()


def test_the_later_decision_counts_whatever_the_order_of_the_files(tmp_path):
    later = TIME + datetime.timedelta(hours=1)
    first = decided(tmp_path / "a.parquet", ("x", 0, DROP, None), ("y", 0, KEEP, None))
    second = decided(
        tmp_path / "b.parquet", ("x", 0, CORRECT, "right"), ("y", 0, KEEP, None), time=later,
        reviewer="abel",
    )  # fmt: skip
    for paths in ([first, second], [second, first], [second, first, second]):
        both = Decisions.read(paths)
        assert both.by_pair["x", 0].caption == "right"
        assert {pair: one.decision for pair, one in both.by_pair.items()} == {
            ("x", 0): "correct", ("y", 0): "keep",
        }  # fmt: skip
        assert both.conflicts == 1  # they agree about y
        assert both.listed[0].decisions == (("drop", "anna"), ("correct", "abel"))


def test_json_lines_are_read_as_parquet_is(tmp_path):
    path = tmp_path / "decisions (1).jsonl"
    line = {"uid": "u1", "caption_number": 2, "decision": "correct", "caption": "right\u2028ly",
            "reviewer": "Anna", "time": "2026-01-01T00:00:00.5+00:00"}  # fmt: skip
    path.write_text(json.dumps(line, ensure_ascii=False) + "\n\n", "utf-8")
    [one] = Decisions.read([str(path)]).by_pair.values()
    assert (one.uid, one.caption_number, one.caption) == ("u1", 2, "right\u2028ly")
    assert (one.reviewer, one.time.isoformat()) == ("Anna", "2026-01-01T00:00:00.500000+00:00")


@pytest.mark.parametrize(
    "change",
    [
        {"decision": "maybe"},
        {"decision": "correct", "caption": " "},
        {"time": "yesterday"},
        {"uid": None, "time": None},
        {"uid": "\ud800"},
    ],
)
def test_lines_that_are_no_decisions_are_named(tmp_path, change, refused):
    line = {"uid": "u1", "decision": "drop", "time": "2026-01-01T00:00:00+00:00", **change}
    (tmp_path / "d.jsonl").write_text(json.dumps(line))
    refused(Decisions.read, [str(tmp_path / "d.jsonl")])


def test_a_journal_counts_beside_its_file_and_a_line_that_is_none_does_not(tmp_path):
    path = decided(tmp_path / "d.parquet", ("x", 0, DROP, None), ("y", 0, DROP, None))
    later = TIME + datetime.timedelta(hours=1)
    records = [
        record_of(1, [Decision("x", 0, KEEP, None, "bert", later)]),
        record_of(2, [Decision("y", 0, KEEP, None, "bert", later)]),
        {"undo": 2},
        {"decision": "drop"},
    ]
    (tmp_path / ".ncclean").mkdir()
    journal = tmp_path / ".ncclean" / "d.parquet.jsonl"
    journal.write_text("".join(json.dumps(record) + "\n" for record in records))
    by_pair = Decisions.read([path]).by_pair
    assert {pair: one.decision for pair, one in by_pair.items()} == {
        ("x", 0): "keep", ("y", 0): "drop",
    }  # fmt: skip


def test_corrected_captions_reach_the_exported_tar_and_the_batch(tmp_path):
    members = []
    for number in range(8):
        image = hostile.encoded(hostile.photo(seed=number))
        members += hostile.sample(f"{number:04d}", image, f"caption {number}".encode())
    (tmp_path / "00000.tar").write_bytes(hostile.tar_bytes(members))
    shards = resolve_shards([str(tmp_path / "00000.tar")])
    rows = [("u3", 0, CORRECT, "right <b>"), ("u7", 0, KEEP, None), ("u0", 0, DROP, None)]
    one_shard = scores(shard=["00000"] * 8)
    chosen(tmp_path, one_shard, *rows, method="noise-probability")
    selection = str(tmp_path / "selection.parquet")
    export_shards(selection, shards, UPath(tmp_path / "out"))
    with tarfile.open(tmp_path / "out" / "00000.tar") as archive:
        texts = {
            member.name: archive.extractfile(member).read().decode()
            for member in archive
            if member.name.endswith(".txt")
        }
        originals = {
            member.name: json.loads(archive.extractfile(member).read()).get("original_caption")
            for member in archive
            if member.name.endswith(".json")
        }
    assert texts == {
        "0001.txt": "caption 1", "0002.txt": "caption 2", "0003.txt": "right <b>",
        "0007.txt": "caption 7",
    }  # fmt: skip
    assert originals["0003.json"] == "caption 3"
    spec = Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3)
    options = LoaderOptions(augment=False, drop_last=False, batch_size=2)
    loader = WeightedLoader(shards, SelectionReader(selection), spec, options)
    captions = [caption for batch in loader.epoch(0) for caption in batch.captions]
    assert sorted(captions) == ["caption 1", "caption 2", "caption 7", "right <b>"]


def test_pairs_that_share_a_uid_and_so_a_decision_are_counted(tmp_path):
    """A column called uid may name a user: one decision is then about all pictures of hers."""
    rows = scores(uid=["a", "a", "b", "b", "c", "d", "e", "f"])
    decisions = [("a", 0, CORRECT, "a dog"), ("b", 0, DROP, None), ("c", 0, CORRECT, "a cat")]
    summary, _ = chosen(tmp_path, rows, *decisions)
    assert summary.decided_alike == 4
    assert any("4 pairs share a decision with others" in str(line)
               for line in decision_lines(summary))  # fmt: skip
