"""Values of Arrow columns as Python's, where Python has none like them."""

import datetime
import subprocess
import sys

import pyarrow as pa

from ncclean.data.arrow_values import python_values

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
