"""Units of text tables: what lies before a row that cannot be passed keeps its units."""

import json
import random

import pytest

from ncclean.data.decoding import DecodedSample
from ncclean.data.images import text_rows
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.text_rows import TextRows
from ncclean.data.images.text_tables import cut_rows
from ncclean.data.member_samples import hashed_uid
from ncclean.data.reader import read_samples
from ncclean.data.samples import Caption, Sample, SkipReason
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError
from ncclean.execution.sample_rows import Row, captions_of, check_places, facts_of_rows, repeated
from tests.data.image_layouts import read


class Numbers:
    """Rows of ten bytes each, those before the `end`, which cannot be passed."""

    def __init__(self, end, passes=False):
        self.offset, self._end, self._passes = 5, end, passes

    def __iter__(self):
        for number in range(self._end):
            self.offset += 10
            yield number
        if not self._passes:
            raise ShardError("no further")


@pytest.mark.parametrize(
    ("end", "passes", "expected"),
    [
        (0, True, []),
        (7, True, [(0, 3, 5), (3, 6, 35), (6, 7, 65)]),
        (6, True, [(0, 3, 5), (3, 6, 35)]),
        (7, False, [(0, 3, 5), (3, 6, 35), (6, 8, 65)]),
        (6, False, [(0, 3, 5), (3, 6, 35), (6, 7, 65)]),
        (0, False, [(0, 1, 5)]),
    ],
)
def test_units(end, passes, expected):
    assert cut_rows(Numbers(end, passes), 3) == expected


def test_units_of_the_rows_that_are_wanted():
    found = cut_rows(Numbers(10, passes=True), 2, lambda number: number % 3 == 0)
    assert found == [(0, 2, 5), (2, 4, 65)]


def csv(folder):
    rows = [f"{n}.jpg,caption {n}\n" for n in range(30)]
    rows[20] = "20.jpg," + 2000 * "x" + "\n"
    (folder / "t.csv").write_text("file_name,text\n" + "".join(rows))
    return folder / "t.csv"


def karpathy(folder):
    images = [{"filename": f"{n}.jpg", "sentences": [{"raw": f"caption {n}"}]} for n in range(30)]
    text = json.dumps({"images": images})
    (folder / "t.json").write_text(text[: text.index("20.jpg")])
    return folder / "t.json"


@pytest.mark.parametrize("write", [csv, karpathy])
def test_a_row_that_cannot_be_passed_fails_its_unit_alone(tmp_path, monkeypatch, write):
    monkeypatch.setattr(ImageLayout, "unit_rows", 8)
    monkeypatch.setattr(text_rows, "_LONGEST_LINE", 1000)
    source = write(tmp_path)
    assert [shard.rows for shard in resolve_sources([str(source)])] == [(0, 8), (8, 16), (16, 21)]
    samples, errors = read(source)
    assert [sample.caption for sample in samples] == [f"caption {n}" for n in range(20)]
    assert len(errors) == 1


# Rows that are equal and of no use come together, and make the same rows as one by one.

JSON = (
    "{}", '{"caption": "x"}', '{"key": "000000007"}', '{"key": "000000012", "uid": "u"}',
    '{"uid": "v"}', "broken", "[1]", '{"file_name": "no.jpg", "caption": "y"}', "", '{"a": 1}',
    '{"a": true}', '{"is_noisy": "true"}', '{"captions": ["a", "b"]}', '{"image": "a.jpg"}',
)  # fmt: skip
CSV = ("a,b,c,d", "", ",,", '"x', "no.jpg,c,", ",,000000055", ",cap,", "file_name,caption,key")
LARGE = 300


def write(folder, ending, count=400):
    random.seed(1)
    lines = ["file_name,caption,key"] if ending == "csv" else ['{"file_name": "a.jpg"}']
    for line in random.choices(CSV if ending == "csv" else JSON, k=count):
        lines += random.choice((1, 1, 2, 5)) * [line]
    (folder / f"t.{ending}").write_text("\n".join(lines))
    return resolve_sources([str(folder / f"t.{ending}")])


def facts(shard, together, caption_key):
    samples = [DecodedSample(one) for one in read_samples(shard, caption_key, together=together)]
    samples.sort(key=lambda decoded: decoded.sample.row)
    rows = [Row(one, caption) for one in samples for caption in captions_of(one.sample)]
    columns = facts_of_rows(shard.name, {}, samples, rows)
    check_places(columns, sum(1 + len(one.sample.alike) for one in samples))
    fields = [rows[number].sample.metadata for number in repeated(rows)[0].to_pylist()]
    return len(samples), {name: values.to_pylist() for name, values in columns.items()}, fields


@pytest.mark.parametrize("caption_key", [None, ["caption", "other"]])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_equal_rows_make_the_rows_that_they_make_one_by_one(
    tmp_path, monkeypatch, ending, caption_key
):
    monkeypatch.setattr(ImageLayout, "unit_rows", LARGE)
    shards = write(tmp_path, ending)
    assert len(shards) > 2
    for shard in shards:
        few, together, fields = facts(shard, True, caption_key)
        many, apart, of_each = facts(shard, False, caption_key)
        assert together == apart
        assert fields == of_each
        assert few < many


def test_thousands_of_equal_rows_are_one_sample(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"file_name": "a.jpg", "caption": "x"}\n' + 5000 * "{}\n")
    (shard,) = resolve_sources([str(tmp_path / "t.jsonl")])
    first, empty = read_samples(shard, together=True)
    assert (first.key, empty.key, len(empty.alike)) == ("a", "000000001", 4999)
    assert empty.alike[-1] == "000005000"
    assert empty.status is SkipReason.IMAGE_MISSING


def test_rows_of_alike_samples_with_several_captions():
    several = Sample(3, "k3", alike=["k4"], captions=[Caption(0, "a"), Caption(1, "b")])
    one = Sample(5, "k5", metadata={"uid": "u"})
    samples = [DecodedSample(several), DecodedSample(one)]
    rows = [Row(sample, caption) for sample in samples for caption in captions_of(sample.sample)]
    numbers, later = repeated(rows)
    assert numbers.to_pylist() == [0, 1, 0, 1, 2]
    assert later.to_pylist() == [0, 0, 1, 1, 0]
    columns = facts_of_rows("s", {}, samples, rows)
    assert columns["row"].to_pylist() == [3, 3, 4, 4, 5]
    assert columns["caption_key"].to_pylist() == ["a", "b", "a", "b", None]
    hashes = [hashed_uid("s", key) for key in ("k3", "k3", "k4", "k4")]
    assert columns["uid"].to_pylist() == [*hashes, "u"]
    assert [len(values) for values in repeated([])] == [0, 0]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_units_are_cut_without_reading_values(tmp_path, monkeypatch, ending):
    """Of all rows but those at the ends of units; each unit still begins where a row does."""
    monkeypatch.setattr(ImageLayout, "unit_rows", LARGE)
    parsed = []
    row_of = TextRows.row_of
    monkeypatch.setattr(TextRows, "row_of", lambda self, row: parsed.append(1) or row_of(self, row))
    shards = write(tmp_path, ending)
    assert len(parsed) < 250  # with those that tell the columns
    url = str(tmp_path / f"t.{ending}")
    with TextRows(url) as whole:
        rows = list(whole)
    for shard in shards:
        with TextRows(url) as some:
            some.seek(shard.offset)
            count = shard.rows[1] - shard.rows[0]
            assert [row for row, _ in zip(some, range(count), strict=False)] == rows[
                slice(*shard.rows)
            ]
    assert shards[-1].rows[1] == len(rows)


def test_what_is_wrong_with_a_line_of_json_is_said(tmp_path):
    (tmp_path / "t.jsonl").write_text('\ufeff{"A": 1}\n{} {}\n  {"b": 2} \n{"c"\n')
    with TextRows(str(tmp_path / "t.jsonl")) as rows:
        first, extra, second, cut = rows
    assert (first, second) == ({"a": 1}, {"b": 2})
    assert extra == text_rows.BrokenRow("no JSON: Extra data: line 1 column 4 (char 3)")
    assert cut.what.startswith("no JSON: Expecting")
