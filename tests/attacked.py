"""What the workers make of an attack."""

import resource
import time
from collections import Counter
from pathlib import Path

from ncclean.data.sources import resolve_sources
from tests.attacks import Attack
from tests.fed import fed

MOST_BYTES, MOST_SECONDS = 1 << 30, 10


def check(attack: Attack, folder: Path) -> None:
    """Read the source that the attack wrote: every row has its status, and bounds are kept."""
    statuses: Counter[str] = Counter()
    failed: dict[str, str] = {}
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
