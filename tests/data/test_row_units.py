"""Units of text tables: what lies before a row that cannot be passed keeps its units."""

import json

import pytest

from ncclean.data.images import text_rows
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.row_units import cut_rows
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError
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
