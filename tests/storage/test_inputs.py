"""The files behind an input, by which a stage tells whether it would do the same again."""

import os

import pytest

from ncclean.base.options import Reads
from ncclean.storage.inputs import stamps


@pytest.mark.parametrize(
    ("reads", "value", "name"),
    [
        (Reads.TABLE, "{}/scores.parquet", "scores.parquet"),
        (Reads.JOINED, "n={}/scores.parquet", "scores.parquet"),
        (Reads.MODEL, "local-dir:{}/model", "model/weights.safetensors"),
        (Reads.PATH, "{}/audit.yaml", "audit.yaml"),
    ],
)
def test_a_file_that_is_written_again_has_another_stamp(tmp_path, reads, value, name):
    """Also one of the same size, and within the same second."""
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"PAR1" * 3)
    second = 1_700_000_000 * 10**9
    found = []
    for later in (0, 1_000_000):
        os.utime(place, ns=(second, second + later))
        found.append(list(stamps(reads, value.format(tmp_path))))
    assert found == [[(str(place), 12, str(second + later))] for later in (0, 1_000_000)]
