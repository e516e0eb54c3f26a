"""What is written of a sample beside its image and captions."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.exporting.export import export_shards
from ncclean.exporting.out_layout import out_layout
from ncclean.exporting.parquet import tables_of
from ncclean.exporting.rows import ExportedRow
from tests import hostile
from tests.exporting.test_export_layouts import picture, select


@pytest.mark.parametrize(("source", "left_out"), [("table", 0), ("tar", 2)])
@pytest.mark.parametrize("form", ["parquet", "folder"])
def test_further_pictures_are_left_out_of_tars_alone(source, left_out, form, tmp_path):
    """A table keeps its other columns."""
    (tmp_path / "in").mkdir()
    if source == "table":
        images = [picture(1), picture(2)]
        table = {"key": ["a", "b"], "jpg": images, "mask": images, "text": ["x", "y"]}
        pq.write_table(pa.table(table), tmp_path / "in" / "c.parquet")
    else:
        members = [
            *hostile.sample("a", picture(1)),
            ("a.mask.png", picture(2)),
            *hostile.sample("b", picture(2)),
            ("b.mask.png", picture(1)),
        ]
        (tmp_path / "in" / "c.tar").write_bytes(hostile.tar_bytes(members))
    chosen, shards = select(tmp_path / "in", folder=tmp_path)
    out = str(tmp_path / "out")
    layout = out_layout(form, out, shards)
    assert export_shards(chosen, shards, UPath(out), layout=layout).further_images == left_out


# Exported rows as Parquet: types that hold all values of a column.


def test_values_of_no_common_type_are_json_as_everywhere():
    values = [[b"ab", float("nan")], {"x": b"ab"}, "text", None]
    rows = [ExportedRow({"odd": value}) for value in values]
    (table,) = tables_of(rows, {})
    a_list, a_dict, *others = table["odd"].to_pylist()
    assert json.loads(a_list) == ["YWI=", None]
    assert json.loads(a_dict) == {"x": "YWI="}
    assert others == ["text", None]
