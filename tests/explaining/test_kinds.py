"""The SQL of a group selects exactly its pairs, whatever captions and urls say."""

import duckdb
import pyarrow as pa
import pytest

from ncclean.explaining.kinds import DERIVED, by_ranges, by_values, kinds_of, length_class

TEXTS = [
    "a red dog",
    "A  RED-dog, it's \"quoted\" '; DROP TABLE scores; --",
    "<script>alert('x')</script> red\ndog",
    "nul\x00byte red dog",
    "\u202egnp.exe \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "हिन्दी में कुत्ता",
    "中文字幕 dog",
    "Straße ÉTÉ été",
    "IMG_1234.JPG",
    "100% $^.*[a-z]+ (.+)",
    "",
    None,
    "dog " * 60,
]
URLS = [
    "https://a.example/x/1.jpg",
    "http://user:pa'ss@B.example:8080/x/2.JPG?size=1",
    "https://o'brien.example/it's/3.png",
    'https://"q".example/\u202e/4.gif#end',
    "ftp://a.example",
    "not a url",
    "",
    None,
    "https://[::1]/x/y.webp",
    "data:image/png;base64,xx",
    "https://a.example/x/y/z.tiff",
    "//a.example/x/1.jpg",
    "https://a.example:80/x/1.jpg",
]


@pytest.fixture
def connection():
    table = pa.table({
        "text": TEXTS, "url": URLS,
        "shard": [f"s'{n % 3}\"" for n in range(len(TEXTS))],
        "caption_key": ["txt", "it's", None] * 4 + ["txt"],
        "language": ["en", "de", None] * 4 + ["en"],
        "text_url": [n == 3 for n in range(len(TEXTS))],
        "text_file_name": [text == "IMG_1234.JPG" for text in TEXTS],
        "text_repetition": [0.97 * (text or "").startswith("dog dog") for text in TEXTS],
        "text_digits": [0.5 * (text == "IMG_1234.JPG") for text in TEXTS],
        "text_boilerplate": ["… it's", None] * 6 + ["dog …"],
        "width": list(range(len(TEXTS))), "height": [7] * len(TEXTS),
        "source": ["o'clock", None, "b"] * 4 + ["b"], "blur": [n / 3 for n in range(len(TEXTS))],
        "cluster": [n % 2 for n in range(len(TEXTS))], "region": [0] * len(TEXTS),
    })  # fmt: skip
    connection = duckdb.connect()
    connection.register("given", table)
    connection.execute("CREATE TABLE scores AS FROM given")
    derived = ", ".join(f"{sql} AS {name}" for name, (_, sql) in DERIVED.items())
    connection.execute(f"CREATE TABLE derived AS SELECT *, {derived}, source AS by_0, blur AS by_1 "
                       "FROM scores")  # fmt: skip
    connection.execute(
        f"CREATE TABLE pairs AS SELECT *, {length_class('len(tokens)')}::UTINYINT AS stratum "
        "FROM derived"
    )
    return connection


def test_every_condition_selects_its_group(connection):
    columns = [row[0] for row in connection.execute("DESCRIBE pairs").fetchall()]
    by = [by_values("source", "source", "by_0"), by_ranges("blur", "blur", "by_1", [0.5, 2.0])]
    kinds = kinds_of(columns, {"cluster": "cluster", "region": "region"}, by)
    assert len({kind.name for kind in kinds}) == len(kinds) == 19
    for kind in kinds:
        value = f"unnest(list_distinct({kind.value}))" if kind.several else kind.value
        groups = connection.execute(
            f"SELECT value, count(*) FROM (SELECT {value} AS value FROM pairs) "
            "WHERE value IS NOT NULL GROUP BY 1"
        ).fetchall()
        assert groups, kind.name
        for name, count in groups:
            condition = kind.condition(name)
            selected = connection.execute(
                f"SELECT count(*) FROM scores WHERE {condition}"
            ).fetchall()[0][0]
            assert selected == count, (kind.name, name, condition)
            assert kind.label(name)


def test_no_range_of_numbers_has_nan():
    connection = duckdb.connect()
    rows = "(VALUES (0.25::DOUBLE), (2.5), ('infinity'), ('nan'), (NULL)) AS rows(blur)"
    kind = by_ranges("blur", "blur", "blur", [0.5, 2.0])
    values = connection.execute(f"SELECT {kind.value} FROM {rows}").fetchall()
    assert values == [("0",), ("2",), ("2",), (None,), (None,)]
    for value, count in (("0", 1), ("1", 0), ("2", 2)):
        selected = f"SELECT count(*) FROM {rows} WHERE {kind.condition(value)}"
        assert connection.execute(selected).fetchall() == [(count,)]


def test_bounds_of_large_numbers_keep_their_digits():
    """Times in seconds since 1970 differ in their last digits."""
    kind = by_ranges("taken", "taken", "taken", [0.12345, 12345.0, 1700000001.0])
    labels = [kind.label(str(number)) for number in range(4)]
    assert labels == [
        "below 0.1235",
        "0.1235 to 12345",
        "12345 to 1700000001",
        "1700000001 or more",
    ]


def test_hosts_have_no_secrets_and_no_ports(connection):
    hosts = {row[0] for row in connection.execute("SELECT host FROM pairs").fetchall()}
    assert {"a.example", "b.example", "o'brien.example"} <= hosts
    assert not [host for host in hosts if host and ("user" in host or "8080" in host)]


def test_a_table_without_urls_and_captions_has_other_kinds():
    assert [kind.name for kind in kinds_of(["shard", "width", "height"])] == ["shard", "image size"]


def test_a_column_of_by_takes_the_name_of_no_other_kind():
    by = [by_values(name, name, f"_by_{number}") for number, name in
          enumerate(("shard", "exchanged words", "source"))]  # fmt: skip
    names = [kind.name for kind in kinds_of(["shard", "_by_0", "_by_1", "_by_2"], by=by)]
    assert names == ["shard", "shard of --by", "exchanged words of --by", "source"]


def test_a_word_counts_once_for_a_caption(connection):
    """That of a caption with sixty dogs is one pair, in a cluster too."""
    columns = [row[0] for row in connection.execute("DESCRIBE pairs").fetchall()]
    kinds = {kind.name: kind for kind in kinds_of(columns, {"cluster": "cluster"})}
    for name, value in (("word", "dog"), ("word in a cluster", "0:dog"), ("phrase", "dog dog")):
        (count,) = connection.execute(
            f"SELECT count(*) FROM (SELECT unnest({kinds[name].value}) AS value FROM pairs "
            "WHERE text LIKE 'dog dog%') WHERE value = ?", [value]
        ).fetchone()  # fmt: skip
        assert count == 1, name
