"""SQL of a person, with the columns of joined tables and ranks filled in."""

import duckdb
import pytest

from ncclean.errors import InputError
from ncclean.storage.column_names import ColumnNames, JoinedFile
from ncclean.storage.expressions import bind_expression, parse_query

SCORES = {"uid": "VARCHAR", "similarity": "FLOAT", "My Col": "FLOAT", "meta": "STRUCT(a INTEGER)"}
DFN = {"uid": "VARCHAR", "similarity": "FLOAT", "blur": "FLOAT"}
NAMES = ColumnNames.of(SCORES, [(JoinedFile("dfn", "dfn.parquet"), DFN)])


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as connection:
        yield connection


def read(connection, text):
    return bind_expression(connection, text, "--where", NAMES)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("similarity > 0.2", {"similarity"}),
        ("dfn.similarity > similarity", {"similarity", "dfn.similarity"}),
        ("DFN.Blur < 1 OR blur > 2", {"blur"}),
        ('"dfn.similarity" > 0', {"dfn.similarity"}),
        ("scores.similarity > scores.dfn.similarity", {"similarity", "dfn.similarity"}),
        ('"my col" > 1', {"My Col"}),
        ("meta.a = 1", {"meta"}),
        ("uid = 'dfn.similarity; rank(similarity)' -- blur", {"uid"}),
        ("uid IN (SELECT uid FROM scores WHERE dfn.blur > 1)", {"uid", "blur"}),
        ("rank(dfn.similarity - blur) > 0.5", {"dfn.similarity", "blur"}),
    ],
)
def test_what_it_reads(connection, text, columns):
    assert read(connection, text).columns == columns


def test_a_column_as_it_is_in_the_file(connection):
    assert read(connection, "My Col").column == "My Col"
    assert read(connection, "dfn.similarity").column == "dfn.similarity"
    assert read(connection, "(similarity)").column == "similarity"
    assert read(connection, "similarity + 0").column is None
    assert read(connection, "rank(similarity)").column is None


def test_ranks_are_found_whatever_surrounds_them(connection):
    mixture = read(connection, '0.5*RANK(similarity) /* rank(blur) */ + 0.5 * rank( "blur" )')
    assert len(mixture.ranks) == 2
    assert mixture.columns == {"similarity", "blur"}
    assert len(read(connection, "rank(blur) + rank(blur)").ranks) == 1
    assert read(connection, "rank() OVER (ORDER BY blur)").ranks == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nosuch > 1", "--where: .*nosuch"),
        ("dfn.nosuch > 1", "dfn has no column 'nosuch'; it has uid, similarity, blur"),
        ("lemon_score < 1", "`ncclean neighbours` computes it, and --join neighbours.parquet"),
        ("rank()", "rank takes one expression"),
        ("rank(similarity, blur)", "rank takes one expression"),
        ("rank(rank(similarity))", "rank cannot be inside another rank"),
        ("(SELECT max(rank(similarity)) FROM scores) > 1", "rank cannot be inside a subquery"),
        ("similarity; DROP VIEW scores", "one SQL expression"),
        ("similarity FROM scores", "one SQL expression"),
        ("similarity, blur", "one SQL expression"),
        ("1 +", "one SQL expression"),
        ("", "one SQL expression"),
    ],
)
def test_what_cannot_be_computed_is_one_sentence(connection, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(connection, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT similarity, dfn.similarity FROM scores", {"similarity", "dfn.similarity"}),
        ("SELECT s.dfn.similarity FROM scores s", {"dfn.similarity"}),
        ("SELECT count(*) FROM scores", set()),
        ("SELECT * FROM scores", set(NAMES.types)),
        ("DESCRIBE scores", set(NAMES.types)),
        ("SELECT a.blur FROM scores a JOIN scores b USING (uid)", {"blur", "uid"}),
        ("SELECT s FROM scores s", set(NAMES.types)),
        # The statement's own `dfn` comes first.
        ("WITH dfn AS (SELECT 1 AS similarity) SELECT dfn.similarity FROM dfn", {"similarity"}),
        ("PIVOT scores ON uid USING sum(similarity)", set(NAMES.types)),
    ],
)
def test_whole_queries(connection, sql, columns):
    assert parse_query(connection, sql, NAMES).columns == columns
