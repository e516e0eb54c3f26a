"""Overlap and detection of the rules, by hand."""

import pytest

from ncclean.report.rule_overlap import overlap_of_rules
from ncclean.report.table import ScoreTable
from tests.report.tables import write_scores


def row(osa: bool, forget: bool, probability: float, noisy: bool | None, kind: str | None = None):
    return {
        "similarity": 0.1,
        "osa_noisy": osa,
        "ncu_split": "forget" if forget else "retain",
        "noise_probability": probability,
        "is_noisy": noisy,
        "noise_kind": kind,
    }


@pytest.fixture
def overlap(tmp_path):
    rows = [
        row(True, True, 0.9, True, "ncr"),
        row(True, False, 0.9, True, "ncr"),
        row(False, True, 0.2, True, "hard"),
        row(True, True, 0.5, False),
        row(False, False, 0.1, False),
        row(False, False, 0.0, None),
        {"status": "image_missing"},
    ]
    return overlap_of_rules(ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))]))


def test_counts_and_jaccard(overlap):
    assert [rule.short for rule in overlap.rules] == ["OSA", "NCU", "p\u00a0≥\u00a0½"]
    assert overlap.pairs == 6
    assert [overlap.both(i, i) for i in range(3)] == [3, 3, 3]
    assert overlap.both(0, 1) == 2
    assert overlap.jaccard(0, 1) == 0.5
    assert overlap.jaccard(0, 2) == 1.0
    largest = overlap.combinations[0]
    assert (largest.mask, largest.pairs) == (0, 2)
    assert {c.mask: c.pairs for c in overlap.combinations} == {0: 2, 7: 2, 5: 1, 2: 1}
    assert sum(c.expected_mismatched for c in overlap.combinations) == pytest.approx(2.6)


def test_detection_where_the_truth_is_known(overlap):
    truth = overlap.truth
    assert (truth.noisy, truth.clean, truth.kinds) == (3, 2, {"ncr": 2, "hard": 1})
    osa, ncu, _ = truth.detections
    assert (osa.counts.flagged, osa.counts.caught) == (3, 2)
    assert osa.precision == pytest.approx(2 / 3)
    assert osa.recall == pytest.approx(2 / 3)
    assert osa.f1 == pytest.approx(2 / 3)
    assert osa.false_alarms == 0.5
    assert osa.by_kind == {"ncr": 1.0, "hard": 0.0}
    assert ncu.by_kind == {"ncr": 0.5, "hard": 1.0}
    assert truth.expected_mismatched == pytest.approx(2.6)


def test_without_truth_and_without_flags(tmp_path):
    rows = [{"similarity": 0.2, "osa_noisy": False}, {"similarity": 0.3, "osa_noisy": False}]
    overlap = overlap_of_rules(ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))]))
    assert overlap.truth is None
    assert overlap.jaccard(0, 0) is None
    assert overlap.combinations[0].expected_mismatched is None
