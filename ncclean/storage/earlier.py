"""Records of runs by ncclean 0.3: lines of JSON in a file, in a store in numbered objects.

They are read for one version; to be removed with 0.5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from upath import UPath

from ncclean import stores

# Of what is `run.json` now.
_NAMES = ("manifest", "_export", "_synth", "_finetune", "_adapt", "explain", "search")
_LONGEST_LINE = 1 << 28  # a list of a million shards has fewer


def earlier_files(path: UPath) -> list[UPath]:
    """The files of the record that 0.3 has left where one is now at `path`; none if it has not."""
    names = _NAMES if path.stem == "run" else (path.stem,)
    stem = "|".join(map(re.escape, names))
    for folder in (path.parent, path.parent.parent):
        found = [
            (match["number"] or "", one.name)
            for one in stores.listing(folder)
            if (match := re.fullmatch(rf"({stem})(-(?P<number>\d{{6,}}))?\.jsonl", one.name))
        ]
        if found:
            return [folder / name for _, name in sorted(found)]
        if path.stem != "run":
            break
    return []


def earlier_lines(path: UPath) -> Iterator[dict[str, Any]]:
    """The lines of such a record; what a crash has cut short is passed over."""
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
