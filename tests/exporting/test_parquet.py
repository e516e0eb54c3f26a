"""Exported rows as Parquet: types that hold all values of a column."""

import json

from ncclean.exporting.parquet import tables_of
from ncclean.exporting.rows import ExportedRow


def test_values_of_no_common_type_are_json_as_everywhere():
    values = [[b"ab", float("nan")], {"x": b"ab"}, "text", None]
    rows = [ExportedRow({"odd": value}) for value in values]
    (table,) = tables_of(rows, {})
    a_list, a_dict, *others = table["odd"].to_pylist()
    assert json.loads(a_list) == ["YWI=", None]
    assert json.loads(a_dict) == {"x": "YWI="}
    assert others == ["text", None]
