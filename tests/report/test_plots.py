"""The plots by hand, and that the page and the figures show the same of them."""

import numpy as np
import pytest

from ncclean.base.estimates import Estimate
from ncclean.report import formats
from ncclean.report.curves import bin_cosines
from ncclean.report.figures import cosine_distribution, threshold_curve
from ncclean.report.measurements import measure
from ncclean.report.plots import (
    NARROW,
    Scale,
    area,
    compact,
    cosine_drawing,
    lay_out,
    line,
    nice_ticks,
    steps,
    threshold_drawing,
)
from ncclean.scoring.null import BINS, Histogram
from ncclean.storage.run_facts import RunFacts
from tests.report.tables import graded, write_scores


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    path = write_scores(tmp_path_factory.mktemp("d") / "s.parquet", graded(), {"shift": "0.1"})
    return measure([str(path)])


def drawing_of(facts: RunFacts, probability: float = 0.0):
    """100 pairs at a cosine of 0 and of 1/4, with a probability of their own."""
    counts = np.zeros(BINS, dtype=np.int64)
    counts[[2048, 2560]] = 100
    calibrated = counts if probability else np.zeros_like(counts)
    return cosine_drawing(bin_cosines(counts, counts * probability, calibrated, facts), facts)


def test_the_source_of_the_mismatched_pairs_is_named():
    null = np.zeros(BINS, dtype=np.int64)
    null[2048] = 50
    with_null = drawing_of(RunFacts(noise_rate=Estimate(0.5), mismatched=Histogram(null)), 0.2)
    assert [(s.role, s.form, s.note) for s in with_null.panels[0].series] == [
        ("observed", "steps", ""),
        ("mismatched", "line", "noise rate × null"),
        ("matched", "line", "observed − mismatched"),
    ]
    assert with_null.legend == with_null.panels[0].series
    assert drawing_of(RunFacts(), 0.2).legend[1].note == "sum of noise probabilities"
    assert [series.role for series in drawing_of(RunFacts()).legend] == ["observed"]


def test_axes_hold_every_value():
    null = np.zeros(BINS, dtype=np.int64)
    null[2048] = 50
    drawing = drawing_of(RunFacts(noise_rate=Estimate(0.9), mismatched=Histogram(null)), 0.2)
    upper, lower = drawing.panels
    # 0.9 * 200 mismatched pairs in one bin, more than the 100 observed ones.
    assert upper.top == pytest.approx(1.04 * 180)
    assert lower.top == 1
    assert np.isfinite(lower.series[0].y).all()
    assert (drawing.low, drawing.high) == (upper.series[0].x[0], upper.series[0].x[-1])


def test_a_marker_outside_the_axis_is_left_out():
    assert [m.label for m in drawing_of(RunFacts(shift=0.1)).markers] == ["OSA shift"]
    assert drawing_of(RunFacts(shift=0.9)).markers == ()


def test_kept_pairs_are_those_expected_to_match_and_the_others_on_top(numbers):
    drawing = threshold_drawing(numbers.curve("noise_probability"))
    kept, right = drawing.panels[0].series
    assert [series.role for series in drawing.legend] == ["right", "kept"]
    assert (kept.y >= right.y).all()
    assert kept.y[-1] == drawing.panels[0].top == 40
    assert right.y[-1] == pytest.approx(20)
    below = kept.x < 0.5  # where every pair is more likely to match than not
    assert (right.y[below] >= kept.y[below] / 2).all()
    assert right.y[below].max() > 5
    assert drawing.x_note == "pairs below it are kept"
    assert threshold_drawing(numbers.curve("similarity")).x_note == "pairs at or above it are kept"


def test_without_noise_probabilities_all_kept_pairs_are_one_area(tmp_path):
    rows = [{"similarity": value / 10} for value in range(5)]
    table = measure([str(write_scores(tmp_path / "s.parquet", rows))])
    (series,) = threshold_drawing(table.curve("similarity")).legend
    assert (series.role, series.label) == ("right", "kept")


def test_page_and_figure_have_the_same_cosines(numbers):
    drawing = cosine_drawing(numbers.cosines, numbers.facts)
    plot = lay_out(drawing, NARROW)
    upper, lower = cosine_distribution(numbers).axes
    assert [[path.style for path in panel.paths] for panel in plot.panels] == [
        ["observed", "curve mismatched", "curve matched"],
        ["curve probability"],
    ]
    assert [tick.label for tick in plot.panels[1].y_ticks] == ["0", "½", "1"]
    assert [panel.name for panel in plot.panels] == ["", "noise probability"]
    drawn = {artist.get_label() for artist in (*upper.lines, *upper.patches)}
    assert drawn == {s.label for s in drawing.legend} | {m.label for m in drawing.markers}
    assert [(m.style, m.label) for m in plot.markers] == [("shift", "OSA shift 0.100")]
    assert plot.title == lower.get_xlabel() == drawing.x_label
    assert upper.get_xlim() == (plot.x.low, plot.x.high)
    assert upper.get_ylim()[1] == drawing.panels[0].top


def test_page_and_figure_have_the_same_thresholds(numbers):
    drawing = threshold_drawing(numbers.curve("similarity"))
    plot = lay_out(drawing, NARROW)
    (panel,) = plot.panels
    figure = threshold_curve(numbers, "similarity")
    assert [path.style for path in panel.areas] == ["kept", "right"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        series.label for series in drawing.legend
    ]
    assert plot.title == "threshold on similarity"
    assert figure.axes[0].get_xlabel().startswith(plot.title)
    # A thousand thresholds become about two hundred points, the ends included.
    assert 180 < panel.areas[0].d.count("L") < 260
    assert panel.areas[0].d.startswith(f"M{plot.x.start:g},")
    assert f"L{plot.x.end:g}," in panel.areas[0].d


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
