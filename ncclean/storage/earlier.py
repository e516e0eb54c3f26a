"""Read records of runs by ncclean 0.3: JSON lines in a file, or numbered objects in a store.

They are read for one more version; remove with 0.5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.base.file_names import WORKING_FOLDER

# Names of what is now `run.json`; the last two were in the output itself.
_NAMES = ("manifest", "_export", "_synth", "explain", "search")
_IN_VIEW = ("_finetune", "_adapt")
_LONGEST_LINE = 1 << 28  # a list of a million shards has fewer


def earlier_files(path: UPath) -> list[UPath]:
    """Return the files of a run record of version 0.3, if any, where this version's is `path`."""
    names: tuple[str, ...] = _NAMES if path.name == "run.json" else (path.stem,)
    places = [(path.parent, names)]
    if path.parent.name == WORKING_FOLDER:
        places.append((path.parent.parent, _IN_VIEW))
    for folder, names in places:
        pattern = rf"({'|'.join(map(re.escape, names))})(-(?P<number>\d{{6,}}))?\.jsonl"
        numbered = [
            (match["number"] or "", one.name)
            for one in stores.listing(folder)
            if (match := re.fullmatch(pattern, one.name))
        ]
        if numbered:
            return [folder / name for _, name in sorted(numbered)]
    return []


def earlier_lines(path: UPath) -> Iterator[dict[str, Any]]:
    """Yield the entries of a run record of version 0.3; skip lines that a crash truncated."""
    for file in earlier_files(path):
        for line in _lines(file):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield entry


def _lines(file: UPath) -> Iterator[bytes]:
    if stores.is_url(file):
        yield from stores.read_bytes(file).splitlines()
        return
    with stores.open_anywhere(file) as stream:
        while line := stream.readline(_LONGEST_LINE):
            yield line
