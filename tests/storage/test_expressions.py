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
    with duckdb.connect(config={"enable_external_access": False}) as connection:
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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("unnest([true, true])", "unnest gives several rows"),
        ("unnest([true])", "unnest gives several rows"),
        ("unlist([blur > 1])", "unnest gives several rows"),
        ("generate_subscripts([1, 2], 1) > 0", "unnest gives several rows"),
        ("CASE WHEN blur > 1 THEN unnest([true]) END", "unnest gives several rows"),
        ("row_number() OVER () > 1 AND unnest([true])", "unnest gives several rows"),
        ("blur > avg(blur)", "an aggregate has one value for all pairs"),
        ("count(*) > 1", "an aggregate has one value for all pairs"),
        ("COLUMNS('blur|similarity') > 0", "stands for"),
        ("blur", "takes a condition, and blur is"),
        ("uid", "takes a condition, and uid is VARCHAR"),
        ("bluur > 1", r"there is no column 'bluur' \(did you mean blur\?\); there are "),
        ("flor(blur) > 1", r"flor does not exist \(did you mean floor\?\)"),
    ],
)
def test_a_condition_is_one_boolean_for_each_pair(connection, text, reason):
    with pytest.raises(InputError, match=f"--where.*{reason}") as raised:
        bind_expression(connection, text, "--where", NAMES, is_condition=True)
    assert "\n" not in str(raised.value)
    assert "Binder" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "blur > 1",
        "blur > (SELECT avg(blur) FROM scores)",
        "uid IN (SELECT unnest(['a', 'b']))",
        "EXISTS (SELECT 1 FROM scores)",
        "row_number() OVER (ORDER BY blur) < 9",
        "rank(blur) > .5",
        "NULL",
        "meta.a",
    ],
)
def test_what_does_not_change_the_number_of_rows_is_a_condition(connection, text):
    expression = bind_expression(connection, text, "--where", NAMES, is_condition=True)
    assert expression.sql


@pytest.mark.parametrize(
    "text",
    [
        "(SELECT content FROM read_text('/etc/passwd')) = ''",
        "(SELECT count(*) FROM read_csv('/etc/passwd')) > 0",
        "(SELECT count(*) FROM '/etc/passwd') > 0",
        "(SELECT count(*) FROM glob('/etc/*')) > 0",
        "getenv('HOME') = ''",
        "true; COPY scores TO 'x.csv'",
        "true; ATTACH 'x.csv'",
        "(COPY scores TO 'x.csv')",
    ],
)
def test_sql_of_a_recipe_reaches_no_file_and_no_variable(connection, text, refused):
    refused(bind_expression, connection, text, "--where", NAMES, is_condition=True)
