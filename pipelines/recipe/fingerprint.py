"""What the result of a stage depends on, as one hash: if it is unchanged, so is the result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import ncclean
from ncclean import stores
from ncclean.data.shards import resolve_shards
from ncclean.storage.tables import table_files

from .check import inputs_of
from .commands import LOCAL_MODEL, Reads
from .load import Stage

Stamp = tuple[str, int, str]  # path, size, version


def fingerprint(stage: Stage, upstream: Mapping[str, str]) -> str:
    """The hash of a stage's options, the inputs from outside, and the runs of what it uses.

    `upstream` identifies the runs of earlier stages (`StageRecord.run_id`): one that ran again
    makes those that use it run again. Options that change no result are left out, and paths that
    depend on the folder of the run count as they are written, so that a run may be moved.
    """
    idle = stage.command.idle
    content = {
        "command": stage.command.name,
        "options": {k: v for k, v in sorted(stage.symbolic.items()) if k not in idle},
        "inputs": sorted(stamp for each in inputs_of(stage) for stamp in _stamps(*each[1:])),
        "upstream": {name: upstream[name] for name in sorted(stage.uses)},
        "version": ncclean.__version__,
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _stamps(kind: Reads, value: str) -> Iterator[Stamp]:
    if kind is Reads.SHARDS:
        for shard in resolve_shards([value]):
            yield shard.url, shard.size, shard.version
    elif kind is Reads.TABLE:
        for file in table_files([value]):
            yield _stamp(file)
    else:
        path = Path(value.removeprefix(LOCAL_MODEL))
        if stores.is_url(value) or not path.exists():
            yield value, 0, ""  # a name of a model
        elif path.is_file():
            yield _stamp(str(path))
        else:
            for folder, _, names in os.walk(path):
                yield from (_stamp(os.path.join(folder, name)) for name in names)


def _stamp(path: str) -> Stamp:
    if not stores.is_url(path):
        facts = os.stat(path)
        return path, facts.st_size, str(facts.st_mtime_ns)
    filesystem, inside = stores.filesystem(path)
    info = stores.ask("read", path, filesystem.info, inside)
    version = info.get("ETag") or info.get("etag") or info.get("mtime")
    return path, int(info.get("size") or 0), str(version or "")
