"""What is there, for whoever asked for a caption that is not."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.data.caption_places import names_there
from ncclean.data.sources import resolve_sources
from tests.data.image_layouts import write_files, write_tar

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
