"""Scoring runs of ncclean 0.3 go on, grow, and are merged."""

import json

import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.storage.layout import ScoreLayout
from ncclean.storage.merge import merge
from ncclean.storage.parts import table_writer
from ncclean.storage.score_run import ScoreRun
from tests.storage.scored_runs import EMPTY, assert_same_table, identity, read, refs, score

OLD, PRESENT = ["b", "d", EMPTY, "f"], ["a", "b", "d", EMPTY, "f", "g"]


def made_old(out, names, unfinished=()):
    """Turn a run into the files that 0.3 has made of it."""
    layout = ScoreLayout(UPath(out))
    listed = pq.read_table(str(layout.shard_list)).to_pylist()
    lines = [
        {"kind": "run", "command": "score", "identity": {
            **json.loads((layout.work / "run.json").read_text())["identity"],
            "shards": [json.loads(one["ref"]) for one in listed]}},
        *({"kind": "part", **json.loads(one["record"])} for one in listed),
    ]  # fmt: skip
    (layout.work / "manifest.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    files = [layout.out] if layout.is_single_file else list(layout.out.glob("*.parquet"))
    for file in files:
        table = pq.read_table(str(file))
        metadata = {k: v for k, v in table.schema.metadata.items() if k != b"rows_by_shard"}
        groups = {str(file): table}
        if not layout.is_single_file:
            file.unlink()
            shards = table.column("shard").to_pylist()
            groups = {
                str(layout.out / f"part-{name}.parquet"): table.filter([s == name for s in shards])
                for name in names
            }
        for path, rows in groups.items():
            with table_writer(path, rows.schema, metadata) as writer:
                writer.write_table(rows, row_group_size=20)
    layout.shard_list.unlink()
    (layout.work / "run.json").unlink()


@pytest.mark.parametrize("name", ["s.parquet", "s"])
def test_a_finished_run_is_the_same_and_grows(tmp_path, name):
    out, once = UPath(tmp_path / name), UPath(tmp_path / "once" / name)
    score(out, OLD)
    before = read(out)
    made_old(out, OLD)
    run = score(out, OLD)
    assert run.pending() == []
    assert_same_table(read(out), before)
    made_old(out, OLD)
    assert score(out, PRESENT).change.counts() == "2 new shards, 4 kept"
    score(once, PRESENT)
    assert_same_table(read(out), read(once))
    layout = ScoreLayout(out)
    assert {path.name for path in layout.work.iterdir()} == {"run.json", "shards.parquet"}
    if not layout.is_single_file:
        assert len(list(out.glob("*.parquet"))) == 1


def test_a_run_of_another_identity_is_refused_and_one_that_is_odd_stays(tmp_path, refused):
    out = UPath(tmp_path / "s.parquet")
    score(out, OLD)
    made_old(out, OLD)
    refused(score, out, ["a"])
    made_old(out, OLD)
    record = tmp_path / "s.parquet.work" / "manifest.jsonl"
    record.write_text(record.read_text().replace('"url"', '"place"'))
    refused(score, out, OLD)
    assert record.exists()


def test_runs_are_merged(tmp_path):
    runs = [str(tmp_path / "a.parquet"), str(tmp_path / "b")]
    for run, names in zip(runs, (OLD[::2], OLD[1::2]), strict=True):
        score(UPath(run), names)
        made_old(run, names)
    merge(runs, str(tmp_path / "s"), shift=0.2)
    score(UPath(tmp_path / "once"), sorted(OLD))
    assert_same_table(read(UPath(tmp_path / "s")), read(UPath(tmp_path / "once")))


@pytest.mark.parametrize("names", [["d", EMPTY, "f"], OLD], ids=["go on", "back"])
@pytest.mark.parametrize("name", ["s.parquet", "s"])
def test_a_shard_that_was_dropped_leaves_the_table(tmp_path, name, names):
    """0.3 was killed before it wrote the table without it."""
    out, once = UPath(tmp_path / name), UPath(tmp_path / "once" / name)
    score(out, OLD)
    made_old(out, OLD)
    with open(ScoreLayout(out).work / "manifest.jsonl", "a") as record:
        entry = {"kind": "shards", "refs": [], "dropped": {"b": 0}, "order": [[1, 4]]}
        record.write(json.dumps(entry) + "\n")
    score(out, names)
    score(once, names)
    assert_same_table(read(out), read(once))


def test_a_repaired_shard_has_the_version_that_was_scored(tmp_path):
    out = UPath(tmp_path / "s")
    score(out, OLD)
    made_old(out, OLD)
    record = ScoreLayout(out).work / "manifest.jsonl"
    first, *lines = record.read_text().splitlines()
    record.write_text("\n".join([first, *(line.replace('"v1"', '"v2"') for line in lines), ""]))
    run = ScoreRun.open(ScoreLayout(out), identity(refs(OLD, "v2"), embeddings=None))
    assert run.pending() == []
    run.close()


def test_records_of_other_commands_beside_a_table_are_not_its_own(tmp_path):
    for name in ("_finetune.jsonl", "manifest.jsonl"):
        (tmp_path / name).write_text('{"kind": "run", "command": "finetune", "identity": {}}\n')
    score(UPath(tmp_path / "s.parquet"), OLD)
    score(UPath(tmp_path / "s.parquet"), OLD, overwrite=True)
    assert (tmp_path / "_finetune.jsonl").exists()


def test_a_file_of_ones_own_is_no_record(tmp_path):
    """Lists of data sets are often called so."""
    mine = [tmp_path / "manifest.jsonl", tmp_path / "s" / "manifest.jsonl"]
    (tmp_path / "s").mkdir()
    for path in mine:
        path.write_text('{"audio": "a.wav"}\n')
    for name in ("s.parquet", "s"):
        score(UPath(tmp_path / name), ["a"])
    assert all(path.read_text() == '{"audio": "a.wav"}\n' for path in mine)
