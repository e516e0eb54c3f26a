"""Values of Arrow columns as Python's, where Python has none like them."""

import datetime
import subprocess
import sys

import pyarrow as pa
import pytest

from ncclean.data.arrow_values import python_values
from ncclean.data.images.arrow_rows import column_values
from ncclean.data.nested_fields import field_at, head_of

_NANOSECONDS = """
import sys

class NoPandas:  # which holds nanoseconds, and is there by chance
    def find_spec(self, name, *_):
        if name == "pandas":
            raise ImportError(name)

sys.meta_path.insert(0, NoPandas())
import pyarrow as pa
from ncclean.data.arrow_values import python_values
print(python_values(pa.array([1_700_000_000_123_456_789, 1_000, None], pa.timestamp("ns"))))
"""


def test_times_that_python_cannot_hold_are_text():
    shown = subprocess.run([sys.executable, "-c", _NANOSECONDS], capture_output=True, text=True)
    assert "2023-11-14 22:13:20.123456789" in shown.stdout, shown.stderr
    assert shown.stdout.count("None") == 1
    assert "datetime(1970, 1, 1, 0, 0, 0, 1)" in shown.stdout


def test_a_value_that_cannot_be_read_costs_only_itself():
    far = pa.array([0, 2**31 - 1], pa.date32())
    assert python_values(far) == [datetime.date(1970, 1, 1), None]
    texts = pa.array([b"a", b"\xff"]).view(pa.string())
    assert python_values(texts) == ["a", b"\xff"]


def test_a_time_of_an_unknown_zone_is_the_same_time_of_utc():
    times = pa.array([1_700_000_000, 2**62, None], pa.timestamp("s", "Mars/Olympus"))
    utc = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.timezone.utc)
    assert python_values(times) == [utc, None, None]
    assert python_values(times.cast(pa.timestamp("s", "UTC"))) == [utc, None, None]


_TEXTS = pa.array([b"a", b"\xff"]).view(pa.string())
_ENDS = pa.array([0, 1, 2], pa.int32())


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.ListArray.from_arrays(_ENDS, _TEXTS), [["a"], [b"\xff"]]),
        (pa.StructArray.from_arrays([_TEXTS], ["t"]), [{"t": "a"}, {"t": b"\xff"}]),
        (_TEXTS.dictionary_encode(), ["a", b"\xff"]),
        (pa.ListArray.from_arrays(_ENDS, _TEXTS.dictionary_encode()), [["a"], [b"\xff"]]),
        (
            pa.MapArray.from_arrays(_ENDS, pa.array(["k", "l"]), _TEXTS),
            [[("k", "a")], [("l", b"\xff")]],
        ),
        (
            pa.array([[1, 2**62], None], pa.list_(pa.timestamp("s"))),
            [[datetime.datetime(1970, 1, 1, 0, 0, 1), None], None],
        ),
    ],
    ids=lambda one: str(one.type) if isinstance(one, pa.Array) else "",
)
def test_a_value_inside_another_costs_only_itself(column, values):
    assert python_values(column) == values


# Captions that lie inside other fields.

TALK = [{"from": "human", "value": "What?"}, {"from": "gpt", "Value": "a red square"}]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("talk[1].value", "a red square"),
        ("talk[-1].value", "a red square"),
        ("talk[0].from", "human"),
        ("a.b", "with a dot"),
        ("talk[2].value", None),
        ("talk[1]value", "a red square"),
        ("talk.value", None),
        ("nothing[0]", None),
        ("a[99999999999]", None),
        ("", None),
    ],
)
def test_paths(path, value):
    assert field_at({"talk": TALK, "a.b": "with a dot", "a": "text"}, path) == value


def test_lists_of_bytes_of_a_slice_are_its_own():
    rows = pa.array([[1], [2], [3]], pa.list_(pa.uint8()))
    assert column_values("image", rows.slice(1, 2)) == [b"\2", b"\3"]


def test_the_field_that_a_path_begins_with():
    assert head_of("talk[1].value") == head_of("talk.value") == head_of("talk") == "talk"
