"""`query` from Python: rows that print, and go on as a frame."""

import pytest

import ncclean


def test_the_rows_as_a_table_an_arrow_table_and_a_frame(scored):
    rows = ncclean.query(
        sql="SELECT key, row FROM scores ORDER BY shard, row LIMIT 3", scores=[str(scored)]
    )
    assert "│" in repr(rows)
    assert rows.to_arrow().num_rows == len(rows["rows"]) == 3
    assert rows.to_arrow()["row"].to_pylist() == [0, 1, 2]
    pandas = pytest.importorskip("pandas")
    assert isinstance(rows.to_pandas(), pandas.DataFrame)


def test_times_with_a_zone_are_text_however_deep(scored):
    time = "TIMESTAMPTZ '2020-01-02 00:00:00+00'"
    sql = f"SELECT {time} AS \"a b\", [{{'t': {time}}}] AS c, sum(row) AS d FROM scores"
    (row,) = ncclean.query(sql=sql, scores=[str(scored)])["rows"]
    assert row["a b"].startswith("2020-01-0")
    assert row["c"] == [{"t": row["a b"]}]
    assert isinstance(row["d"], int)


def test_a_notebook_shows_the_first_rows_as_they_are(scored):
    table = str(scored / "scores.parquet")
    page = ncclean.query("SELECT key, '<b>' AS mark, NULL AS gap FROM scores", table)._repr_html_()
    assert page.count("<tr>") == 1 + 20
    assert "first 20" in page
    assert "<th>key</th><th>mark</th><th>gap</th>" in page
    assert page.count("<td>&lt;b&gt;</td><td>NULL</td>") == 20
    first = ncclean.query("SELECT key FROM scores", table).to_arrow()["key"][0].as_py()
    assert f"<td>{first}</td>" in page
    long = ncclean.query("SELECT repeat('x', 1000000) AS text", table)._repr_html_()
    assert len(long) < 1_000
    assert "first" not in long
