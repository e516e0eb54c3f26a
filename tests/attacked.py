"""What the workers make of attacks."""

import resource
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ncclean.data.sources import resolve_sources
from ncclean.execution import shard_reader
from ncclean.workers.fork_server import SERVER
from ncclean.workers.worker import Worker
from tests.attacks import Attack
from tests.fed import fed

# Ten seconds where nothing else runs; beside other tests each takes several times as long.
MOST_BYTES, MOST_SECONDS = 1 << 30, 40


def check(attacks: Sequence[Attack], folder: Path) -> None:
    """Read the sources that attacks write, by the same workers: starting some takes a while.

    Every row has its status, and bounds are kept.
    """
    SERVER.imports(shard_reader.__name__)
    Worker("ncclean.workers.call").close()  # which waits for the imports
    for number, attack in enumerate(attacks):
        (folder / f"{number}").mkdir()
        attack.write(folder / f"{number}")
    statuses = {attack.name: Counter[str]() for attack in attacks}
    failed: dict[str, list[str]] = {attack.name: [] for attack in attacks}
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    shards = [
        replace(shard, name=f"{attack.name}/{shard.name}")
        for number, attack in enumerate(attacks)
        for shard in resolve_sources([str(folder / f"{number}" / attack.source)])
    ]
    for name, (rows, _) in fed(shards).items():
        of = name.partition("/")[0]
        statuses[of].update(rows.facts["status"].to_pylist())
        if rows.error is not None:
            failed[of].append(rows.error)
    assert time.monotonic() - begin < MOST_SECONDS + 5 * (len(attacks) - 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_BYTES >> 10
    for attack in attacks:
        assert statuses[attack.name] == attack.statuses, attack.name
        assert len(failed[attack.name]) == len(attack.failed), attack.name
        assert all("Errno" not in text for text in failed[attack.name]), attack.name
