"""What the workers make of an attack."""

import resource
import time
from collections import Counter
from pathlib import Path

from ncclean.data.sources import resolve_sources
from ncclean.execution import shard_reader
from ncclean.workers.fork_server import SERVER
from ncclean.workers.worker import Worker
from tests.attacks import Attack
from tests.fed import fed

# Ten seconds where nothing else runs; beside other tests each takes several times as long.
MOST_BYTES, MOST_SECONDS = 1 << 30, 40


def check(attack: Attack, folder: Path) -> None:
    """Read the source that the attack wrote: every row has its status, and bounds are kept."""
    SERVER.imports(shard_reader.__name__)
    Worker("ncclean.workers.call").close()  # which waits for the imports
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
