"""Small exports of `exports.yaml`: every file that is written, and what is counted."""

import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from upath import UPath

from ncclean.data.member_samples import sample_uid
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.exporting.export import export_shards
from ncclean.exporting.out_layout import out_layout
from ncclean.exporting.uid_file import export_uids
from tests.data.test_sources import write

CASES = yaml.safe_load(Path(__file__).with_name("exports.yaml").read_text("utf-8"))
EXPORTS = [(name, form) for name, case in CASES.items() for form in case.get("forms", ["auto"])]
TYPES = {
    "weight": pa.float32(), "split": pa.string(), "row": pa.int32(), "caption": pa.string(),
    "caption_number": pa.int16(), "caption_rank": pa.int16(), "similarity": pa.float32(),
    "part_starts": pa.list_(pa.int32()), "part_noise_probabilities": pa.list_(pa.float32()),
}  # fmt: skip


def text(data):
    return data.decode("utf-8", "backslashreplace")


def lines_of(path, name):
    """The lines of a file: what a tar, a table or a text holds."""
    if path.suffix == ".tar":
        with tarfile.open(path) as tar:
            for member in tar:
                yield f"{name} {member.name}: {text(tar.extractfile(member).read())!r}"
    elif path.suffix == ".parquet":
        for row in pq.read_table(path).to_pylist():
            yield f"{name}: {json.dumps(row, default=text)}"
    elif "_stats" not in path.name:  # which has times
        yield f"{name}: {text(path.read_bytes())!r}"


def rows_of(shards):
    """The uid, shard and key of each sample."""
    return [
        {"uid": sample_uid(one.metadata, shard.name, one.key), "shard": shard.name, "key": one.key}
        for shard in shards
        for one in read_samples(shard)
    ]


def write_table(rows, path, **defaults):
    """The rows, with values in place of those that all of them lack."""
    rows = [{**defaults, **row} for row in rows]
    columns = {name: pa.array([row[name] for row in rows], TYPES.get(name)) for name in rows[0]}
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize(("name", "form"), EXPORTS)
def test_what_is_written(name, form, tmp_path, snapshot):
    case, out = CASES[name], UPath(tmp_path / "out")
    write(case["files"], tmp_path / "source")
    shards = resolve_pairs([str(tmp_path / "source" / case.get("source", "."))])
    shard, rows = shards[0].name, case.get("selected")
    rows = rows_of(shards) if rows is None else [{"uid": row["key"], **row} for row in rows]
    chosen = write_table(rows, tmp_path / "k.parquet", shard=shard, weight=1.0, split=None)
    options = case.get("options", {})
    if "scores" in case:
        uids = {row["key"]: row["uid"] for row in rows}
        scores = [{"uid": uids[row["key"]], **row} for row in case["scores"]]
        options = {**options, "scores": [write_table(scores, tmp_path / "s.parquet", shard=shard)]}
    layout = out_layout(form, str(out), shards)
    summary = export_shards(chosen, shards, out, layout=layout, **options)
    facts = ("shards", "samples", "missing", "errors", "further_images")
    counts = {name: getattr(summary, name) for name in facts if getattr(summary, name)}
    files = (path.relative_to(out).as_posix() for path in Path(out).rglob("*") if path.is_file())
    names = sorted(name for name in files if not name.startswith(".ncclean/"))
    lines = [line for name in names for line in lines_of(Path(out / name), name)]
    snapshot.says("\n".join([json.dumps(counts), *lines]))


def test_a_file_of_uids_cannot_hold_mended_captions(tmp_path):
    rows = [{"uid": f"{n:032x}", "key": "a", "caption": text} for n, text in enumerate(("x", None))]
    chosen = write_table(rows, tmp_path / "k.parquet", shard="0", weight=1.0, split=None)
    assert export_uids(chosen, UPath(tmp_path / "uids.npy")).mended_lost == 1
