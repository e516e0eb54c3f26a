"""Scales, ticks and paths, by hand."""

import numpy as np
import pytest

from ncclean.report import formats
from ncclean.report.plots import Scale, area, compact, line, nice_ticks, steps


@pytest.mark.parametrize(
    ("low", "high", "count", "ticks"),
    [
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.45, 0.62, 9, [-0.4, -0.2, 0.0, 0.2, 0.4, 0.6]),
        (0, 950, 5, [0, 200, 400, 600, 800]),
        (0.3, 0.3, 5, [0.3]),
        (-3, 7_000_000, 4, [0, 2_000_000, 4_000_000, 6_000_000]),
    ],
)
def test_ticks_are_round_and_exact(low, high, count, ticks):
    assert nice_ticks(low, high, count) == ticks


def test_scale_and_paths():
    x, y = Scale(0, 2, 10, 110), Scale(0, 4, 100, 0)
    assert (x(0), x(1), y(4), y(0)) == (10, 60, 0, 100)
    assert Scale(1, 1, 5, 9)(1) == 5
    values = np.array([0.0, 4.0, np.nan, 2.0])
    assert line(np.array([0, 1, 1.5, 2]), values, x, y) == "M10,100L60,0L110,50"
    assert area(np.array([0, 2]), np.array([4, 2]), x, y) == "M10,0L110,50L110,100L10,100Z"
    histogram = steps(np.array([0, 1, 2]), np.array([2, 4]), x, y)
    assert histogram == "M10,50L60,50L60,0L110,0L110,100L10,100Z"


def test_numbers_as_people_read_them():
    assert [compact(v) for v in (0, 950, 1500, 20_000_000)] == ["0", "950", "1.5k", "20M"]
    assert [formats.share(v) for v in (0, 0.2071, 0.0123, 0.000171, 1e-7, 1, None)] == [
        "0.0%", "20.7%", "1.2%", "0.017%", "<0.001%", "100.0%", "–",
    ]  # fmt: skip
    assert [formats.expected(v) for v in (5.44, 999.96, 12345.6, None)] == [
        "5.4", "1,000.0", "12,346", "–",
    ]  # fmt: skip
    assert formats.decimal(-0.1234) == "−0.123"
    assert formats.count(1234567) == "1,234,567"
