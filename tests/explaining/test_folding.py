"""What a group is folded into: a cause that it shares pairs with, or none."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ncclean.explaining import folding
from ncclean.explaining.aggregates import STRATA, Totals
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.kinds import PAIR, Kind
from ncclean.explaining.options import ExplainOptions
from ncclean.explaining.pairs_file import Required

KIND = Kind("shard", PAIR, "shard", ("shard",), str)


@pytest.mark.parametrize(("shared", "into"), [(0.0, {}), (1.0, {1: 0})])
def test_a_group_is_folded_into_a_cause_of_its_pairs_alone(shared, into, monkeypatch):
    totals = Totals(*(np.full(shape, 1e3) for shape in ((STRATA,), (1, STRATA), (1, STRATA), (1,))))
    members = csr_matrix([[1.0, shared], [0.0, 1.0]])
    patterns = folding.Patterns(
        members, np.zeros(2, int), np.array([90.0, 60.0]), np.array([[90.0, 30.0]]), totals
    )
    candidates = [
        Candidate(KIND, value, 0, Required((0,), (1.0,)), (0.0,), 9.0, 0.001) for value in "ab"
    ]
    monkeypatch.setattr(folding, "_strength", lambda one, *_: 9.0 if one is candidates[0] else None)
    folded = folding.fold(
        candidates, [0, 1], patterns, ExplainOptions(), -5.0, ["shard"], lambda *_: True
    )
    assert (folded.causes, folded.into) == ([0], into)
