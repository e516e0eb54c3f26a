"""Facts of the run from the Parquet metadata."""

import json

import numpy as np
import pytest

from ncclean.scoring.null import BINS, Histogram
from ncclean.scoring.stats import pack_histogram
from ncclean.storage.run_facts import RunFacts, parse_facts, read_facts
from tests.report.tables import graded, write_scores

COUNTS = np.arange(BINS)
FIELDS = {
    "model": "demo",
    "pretrained": "bundled",
    "shift": "-0.125",
    "noise_rate": "0.2",
    "noise_rate_low": "nan",
    "mismatched_histogram": json.dumps(pack_histogram(Histogram(COUNTS, 0))),
}


def test_values_and_what_is_not_recorded():
    facts = parse_facts(FIELDS)
    assert (facts.model_name, facts.shift, facts.noise_rate.value) == (
        "demo / bundled",
        -0.125,
        0.2,
    )
    assert not facts.noise_rate.has_interval
    assert np.array_equal(facts.mismatched.counts, COUNTS)
    assert parse_facts({}) == RunFacts()
    assert parse_facts({"model": "m", "pretrained": "None"}).model_name == "m"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"counts": "eA==", "units": 0}', "null"])
def test_a_broken_histogram_counts_as_missing(text):
    assert parse_facts({**FIELDS, "mismatched_histogram": text}).mismatched is None


def test_files_of_several_runs_have_no_facts_in_common(tmp_path):
    one = write_scores(tmp_path / "1.parquet", graded(), FIELDS)
    same = write_scores(tmp_path / "2.parquet", graded(), FIELDS)
    other = write_scores(tmp_path / "3.parquet", graded(), {**FIELDS, "shift": "0.3"})
    assert read_facts([str(one), str(same)]).model == "demo"
    unlike = write_scores(tmp_path / "4.parquet", graded(), {**FIELDS, "preprocessing": "{}"})
    assert read_facts([str(one), str(unlike)]).several_runs
    mixed = read_facts([str(one), str(other)])
    assert mixed.several_runs
    assert not mixed.noise_rate.is_known
