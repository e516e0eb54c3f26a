"""The shift as the engines estimate it: bounded by the size of the model, kept for the next run."""

import pytest

from ncclean.base.config import ScoreOptions
from ncclean.execution import shift as module
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.image_encoder import ImageEncoder
from ncclean.execution.shift import sample_size


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [(1_000, 4096), (7_550_000, 2560), (151_000_000, 128), (2_500_000_000, 128)],
)
def test_a_large_model_encodes_no_more_noise_than_the_design_allows(parameters, expected):
    assert sample_size(parameters) == expected


def test_an_encoder_estimates_the_shift_of_a_model_once(demo_estimator, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCLEAN_CACHE", str(tmp_path))
    encoder = ImageEncoder(demo_estimator, ScoreOptions(), ColumnSources(ScoreOptions()))
    first = encoder.estimate_shift(seed=0, tolerance=0.02)
    monkeypatch.setattr(module, "estimate_shift", lambda *args, **kwargs: 7.0)
    assert encoder.estimate_shift(seed=0, tolerance=0.02) == first
    assert encoder.estimate_shift(seed=1, tolerance=0.02) == 7.0
