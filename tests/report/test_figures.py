"""The same numbers as matplotlib figures."""

import subprocess
import sys

import numpy as np
import pytest

from ncclean.errors import InputError
from ncclean.report.figures import (
    FIGURES,
    cosine_distribution,
    rule_overlap,
    shard_noise_rates,
    threshold_curve,
)
from ncclean.report.measurements import measure
from tests.report.tables import graded, write_scores


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    path = write_scores(tmp_path_factory.mktemp("f") / "s.parquet", graded(), {"shift": "0.1"})
    return measure([str(path)])


def test_curves_are_the_numbers(numbers):
    upper, lower = cosine_distribution(numbers).axes
    lines = {line.get_label(): line for line in upper.lines}
    assert np.array_equal(lines["matched"].get_ydata(), numbers.cosines.matched)
    assert np.array_equal(lines["mismatched"].get_ydata(), numbers.cosines.mismatched)
    assert list(lines["OSA shift"].get_xdata()) == [0.1, 0.1]
    assert np.isfinite(lower.lines[0].get_ydata()).all()


def test_heat_map_has_the_jaccard_indices(numbers):
    texts = [text.get_text() for text in rule_overlap(numbers).axes[0].texts]
    assert texts[0] == f"{numbers.overlap.both(0, 0):,}"
    assert texts[1] == f"{numbers.overlap.jaccard(0, 1):.2f}"


def test_noise_rates_of_shards_have_their_95_percent_intervals(numbers):
    [shard] = numbers.shards.rows
    [bars] = shard_noise_rates(numbers).axes[0].containers
    ((_, low), (_, high)) = bars.lines[2][0].get_segments()[0]
    rate = shard.noise_rate
    assert (low + high) / 2 == pytest.approx(rate)
    assert high - rate == pytest.approx(1.96 * (rate * (1 - rate) / shard.ok) ** 0.5)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_saved(numbers, tmp_path, name):
    figure = FIGURES[name](numbers)
    for kind in ("pdf", "svg", "png"):
        figure.savefig(tmp_path / f"{name}.{kind}")
        assert (tmp_path / f"{name}.{kind}").stat().st_size > 1000


def test_what_is_not_there_is_one_sentence(tmp_path):
    empty = measure([str(write_scores(tmp_path / "s.parquet", [{"status": "image_missing"}]))])
    for draw in FIGURES.values():
        with pytest.raises(InputError):
            draw(empty)
    with pytest.raises(InputError, match="no values of nonsense"):
        threshold_curve(empty, "nonsense")


def test_a_page_loads_neither_matplotlib_nor_torch():
    code = (
        "import sys, ncclean.report.figures, ncclean.report.page;"
        "print({'matplotlib', 'sklearn', 'torch'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr
