"""What mends a cause is proposed where it can be: shifts of pairs that are in order."""

import contextlib

import duckdb
import numpy as np
import pytest

from ncclean.base.progress import SILENT
from ncclean.explaining import proposals
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.kinds import IMAGE, PAIR, Kind
from ncclean.explaining.outcomes import outcomes_of
from ncclean.explaining.pairs_file import Required, Values
from tests.explaining.test_shifts import vectors

VALUES = Values(outcomes_of(["noise_probability"]))


@pytest.mark.parametrize(("kind", "is_by", "is_shifted"), [
    ("shard", False, True), ("image size", False, False), ("source", True, True),
])  # fmt: skip
def test_shifts_are_of_groups_whose_pairs_were_written_in_order(
    kind, is_by, is_shifted, monkeypatch
):
    image, text, right = vectors(200)
    moved = np.roll(text, 2, axis=0)
    monkeypatch.setattr(proposals, "read_vectors", lambda *_: {4: (np.arange(200), image, moved)})
    connection = duckdb.connect()
    with contextlib.closing(connection):
        connection.execute(
            f"CREATE TABLE pairs AS SELECT range AS place, 's' AS shard, range::VARCHAR AS key, "
            f"0 AS caption_number, {right} AS similarity, 0.0 AS v0 FROM range(400)"
        )
        connection.execute(
            "CREATE TABLE members AS SELECT range AS place, 4 AS member FROM range(200)"
        )
        of_kind = Kind(kind, IMAGE if kind == "image size" else PAIR, "x", (), str, is_by=is_by)
        candidate = Candidate(of_kind, "a", 0, Required((0,), (1.0,)), (0.0,), 9.0, 0.001)
        found = proposals.propose(
            connection, [candidate], [4], [0], VALUES, ["embeddings"], None, SILENT
        )
        assert set(found.shifts) == ({0} if is_shifted else set())
        assert ("shifted by +2" in found.texts.get(0, "")) == is_shifted
        assert not proposals.propose(
            connection, [candidate], [4], [0], VALUES, [], None, SILENT
        ).texts
