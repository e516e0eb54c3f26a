"""Every attack gives the rows that it must, in bounded time and memory."""

import resource
import subprocess
import time
from collections import Counter

import pytest

from ncclean.data.sources import resolve_sources
from tests.attacks import ATTACKS
from tests.fed import fed
from tests.table_attacks import TABLE_ATTACKS

MOST_BYTES, MOST_SECONDS = 1 << 30, 10
SLOW = ("six images of 88 million pixels",)  # to be decoded by more than one thread: test_gate.py


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)  # too deep for shutil


@pytest.mark.parametrize(
    "attack",
    [one for one in (*ATTACKS, *TABLE_ATTACKS) if one.name not in SLOW],
    ids=lambda attack: attack.name,
)
def test_every_row_has_its_status(folder, attack):
    attack.write(folder)
    statuses, failed = Counter(), {}
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    for name, (rows, _) in fed(resolve_sources([str(folder / attack.source)])).items():
        statuses.update(rows.facts["status"].to_pylist())
        if rows.error is not None:
            failed[name] = rows.error
    assert time.monotonic() - begin < MOST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_BYTES >> 10
    assert statuses == attack.statuses
    assert len(failed) == len(attack.failed)
    assert all("Errno" not in text for text in failed.values())
