"""Joins and ranks over small tables of which every row is known."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.errors import InputError
from ncclean.storage.joined import JoinedScores, query
from ncclean.storage.quoting import quoted

SCORES = {
    "uid": ["d", "a", None, "b", "c"],
    "shard": ["0", "0", "0", "1", "1"],
    "key": ["0", "1", "2", "0", "1"],
    "row": [0, 1, 2, 0, 1],
    "status": ["ok", "ok", "ok", "image_corrupt", "ok"],
    "similarity": pa.array([0.5, 0.1, None, 0.9, 0.5], pa.float32()),
}


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.fixture
def scores(tmp_path):
    """Two files of which the second name comes first in the alphabet."""
    table = pa.table(SCORES)
    pq.write_table(table[:3], tmp_path / "z.parquet")
    pq.write_table(table[3:], tmp_path / "a.parquet")
    return [str(tmp_path / "z.parquet"), str(tmp_path / "a.parquet")]


def rows(sql, scores, *joins):
    return query(sql, scores, joins=joins).fetchall()


def test_each_row_finds_its_partner_and_keeps_its_place(scores, tmp_path):
    dfn = write(tmp_path / "dfn.parquet", uid=["a", "d", "x", None], blur=[10, 40, 90, 70],
                similarity=[1.0, 4.0, 9.0, 7.0])  # fmt: skip
    found = rows("SELECT uid, similarity, dfn.similarity, blur FROM scores", scores, dfn)
    half, low, high = 0.5, pytest.approx(0.1), pytest.approx(0.9)
    assert found == [
        ("d", half, 4.0, 40), ("a", low, 1.0, 10), (None, None, None, None),
        ("b", high, None, None), ("c", half, None, None),
    ]  # fmt: skip
    with JoinedScores.open(scores, [dfn]) as joined:
        joined.prepare(["uid"])
        assert joined.partners == {"dfn": 2}


@pytest.mark.parametrize(
    "numbers",
    [
        [0.0, 1.0, None],
        np.array([0, 1, np.nan]),
        pa.array([0, 1, None], pa.int16()),
        pa.array([0, 1, 0], pa.uint8()),
    ],
)
def test_a_caption_number_with_gaps_counts_by_its_value(tmp_path, numbers):
    scores = write(tmp_path / "s.parquet", uid=["a", "a", "b", "c"], shard=["0"] * 4,
                   key=list("aabc"), caption_number=pa.array([1, 0, 0, 1], pa.int16()))  # fmt: skip
    other = write(tmp_path / "o.parquet", uid=["a", "a", "b"], caption_number=numbers, x=[5, 6, 7])
    assert rows("SELECT x FROM scores", [scores], other) == [(6,), (5,), (7,), (None,)]


def test_by_shard_and_key_and_by_the_number_of_the_caption(tmp_path):
    scores = write(tmp_path / "s.parquet", uid=["a", "a", "b"], shard=["0", "0", "0"],
                   key=["5", "5", "6"], caption_number=pa.array([0, 1, 0], pa.int16()))  # fmt: skip
    keyed = write(tmp_path / "k.parquet", shard=["0", "0"], key=["6", "5"], x=[6, 5])
    numbered = write(tmp_path / "n.parquet", uid=["a", "a"], caption_number=[1, 0], y=[1, 0])
    found = rows("SELECT uid, x, y FROM scores", [scores], keyed, numbered)
    assert found == [("a", 5, 0), ("a", 5, 1), ("b", 6, None)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.large_string()])
def test_a_uid_of_another_type_is_compared_as_text(tmp_path, kind):
    scores = write(tmp_path / "s.parquet", uid=["12", "7", "x"])
    other = write(tmp_path / "o.parquet", UID=pa.array([7, 12]).cast(kind), v=[70, 120])
    assert rows("SELECT uid, v FROM scores", [scores], other) == [
        ("12", 120),
        ("7", 70),
        ("x", None),
    ]


def test_repeated_keys_are_named_by_the_first(scores, tmp_path, refused):
    twice = write(tmp_path / "t.parquet", uid=["x", "z", "y", "y", "x", None, None], v=[0] * 7)
    refused(rows, "SELECT v FROM scores", scores, twice)
    keyed = write(tmp_path / "k.parquet", shard=["0", "0"], key=["1", "1"], v=[1, 2])
    refused(rows, "SELECT v FROM scores", scores, keyed)


def test_a_table_of_other_pairs_or_of_none_is_an_error(scores, tmp_path, refused):
    other = write(tmp_path / "o.parquet", uid=["p", "q"], v=[1, 2])
    refused(rows, "SELECT v FROM scores", scores, other)
    empty = write(tmp_path / "e.parquet", uid=pa.array([], pa.string()), v=pa.array([], pa.int32()))
    refused(rows, "SELECT v FROM scores", scores, empty)
    nothing = write(tmp_path / "n.parquet", uid=pa.array([], pa.string()))
    assert rows("SELECT uid, v FROM scores", [nothing], other) == []


def test_paths_names_and_columns_that_need_quotes(tmp_path):
    scores = write(tmp_path / "s.parquet", uid=["a"])
    strange = {'a "b"; DROP VIEW scores': [1.0], "Upper Case": [2.0]}
    path = write(tmp_path / "it's" / "x.parquet", uid=["a"], **strange)
    found = rows('SELECT "a ""b""; DROP VIEW scores", "upper case", odd."Upper Case" FROM scores',
                 [scores], f"odd={path}")  # fmt: skip
    assert found == [(1.0, 2.0, 2.0)]


def test_folders_and_globs(scores, tmp_path):
    for number, uid in enumerate("ad"):
        write(tmp_path / "parts" / f"part-{number}.parquet", uid=[uid], v=[number])
    sql = "SELECT uid, parts.v FROM scores WHERE v IS NOT NULL"
    assert rows(sql, scores, str(tmp_path / "parts")) == [("d", 1), ("a", 0)]
    assert rows(sql, scores, f"parts={tmp_path}/parts/*.parquet") == [("d", 1), ("a", 0)]


def ranks(scores, text, *joins):
    with JoinedScores.open(scores, joins) as joined:
        expression = joined.expression(text, "--score")
        files = joined.prepare(["uid"], [expression])
        assert files != scores
        found = joined.connection.execute(f"SELECT {expression.sql} FROM scores").fetchall()
    return [value for (value,) in found]


def test_rank_is_the_share_of_the_other_scored_pairs_below(scores, tmp_path):
    assert ranks(scores, "rank(similarity)") == [0.5, 0.0, None, None, 0.5]
    dfn = write(tmp_path / "dfn.parquet", uid=list("abcd"), similarity=[1.0, 5.0, 0.0, 2.0])
    assert ranks(scores, "rank(dfn.similarity) - rank(similarity)", dfn) == [
        0.5, 0.5, None, None, -0.5,
    ]  # fmt: skip
    assert ranks(scores, "rank(-similarity)") == [0.0, 1.0, None, None, 0.0]


def test_ranks_are_those_of_sql(tmp_path):
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=3000), 2).astype(np.float32)
    values[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, np.inf]
    scores = write(tmp_path / "s.parquet", uid=[f"{n}" for n in range(3000)], v=values)
    found = ranks([scores], "rank(v)")
    known = values[~np.isnan(values)]
    expected = [
        None if np.isnan(value) else float((known < value).sum() / (len(known) - 1))
        for value in values
    ]
    assert found == pytest.approx(expected)


def test_rank_of_text_is_one_sentence(scores):
    with pytest.raises(InputError, match="Could not convert") as caught:
        ranks(scores, "rank(uid)")
    assert "\n" not in str(caught.value)


def test_nothing_stays_behind(scores, tmp_path, monkeypatch):
    dfn = write(tmp_path / "dfn.parquet", uid=["a"], v=[1.0])
    with JoinedScores.open(scores, [dfn], "100MB") as joined:
        (file,) = joined.prepare(["uid", "v"])
        assert pq.read_table(file).column_names[:2] == ["uid", "v"]
        work = joined.work
        assert work.is_dir()
    assert not work.exists()


@pytest.mark.parametrize(
    "text",
    [
        "(SELECT count(*) FROM read_text('/etc/hostname')) > 0",
        "(SELECT count(*) FROM '/etc/passwd') > 0",
        "rank((SELECT count(*) FROM read_text('/etc/hostname')))",
    ],
)
def test_no_other_file_is_read(scores, text):
    with (
        JoinedScores.open(scores) as joined,
        pytest.raises(InputError, match=r"disabled by config|rank cannot be|does not exist"),
    ):
        joined.expression(text, "--where")


def test_joins_are_refused_as_any_other_statement(scores, tmp_path, refused):
    dfn = write(tmp_path / "dfn.parquet", uid=["a"], v=[1.0])
    for sql in (
        f"COPY scores TO '{dfn}'",
        "SELECT 1; SELECT 2",
        f"SELECT * FROM '{tmp_path}/x.csv'",
    ):
        refused(rows, sql, scores, dfn)


@pytest.mark.parametrize("name", ["_place", "_Place_1", "file_row_number", "file_index"])
def test_a_column_that_would_stand_in_for_the_place_is_named(scores, tmp_path, name):
    """DuckDB takes the file's own column for its own: the rows would be in another order."""
    other = write(tmp_path / "other.parquet", uid=["a", "b"], **{name: [0, 0]})
    with pytest.raises(InputError, match=f"other.parquet has a column {name}, .* rename it"):
        rows("SELECT uid FROM scores", scores, other)
    with pytest.raises(InputError, match=f"has a column {name}"):
        rows("SELECT uid FROM scores", [other])


def test_nul_in_a_text_is_found(tmp_path):
    scores = write(tmp_path / "s.parquet", uid=["a", "b"], shard=["x\0y", "x y"])
    with JoinedScores.open([scores]) as joined:
        condition = joined.expression(f"shard = {quoted(chr(0).join('xy'))}", "--where")
        found = joined.connection.execute(f"SELECT uid FROM scores WHERE {condition.sql}")
        assert found.fetchall() == [("a",)]
