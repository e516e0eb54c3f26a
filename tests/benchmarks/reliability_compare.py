"""What an interrupted run left, row by row, beside what one uninterrupted run wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from corpora import members_of
from safetensors.numpy import load_file

_KEYS = ("shard", "row", "caption_number", "uid", "key")
_CONTENTS = (".parquet", ".tar", ".npy", ".safetensors", "results.jsonl")
# Working folders: what is in them at the end is a matter of the command.
_RECORDS = (".ncclean", ".work")


@dataclass
class Difference:
    """Counts; all but `rows` are 0 where two folders hold the same. `names` are of such files."""

    rows: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0
    files_missing: int = 0
    files_left: int = 0
    names: list[str] = field(default_factory=list)

    def __iadd__(self, other: Difference) -> Difference:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        return self


def compare(expected: Path, found: Path) -> Difference:
    """All files of two folders, by name; tables, shards, vectors, weights and logs by row."""
    names, others = _names(expected), _names(found)
    total = Difference(
        files_missing=len(names - others),
        files_left=len(others - names),
        names=sorted(names ^ others),
    )
    for name in sorted(names):
        if name.endswith(_CONTENTS) and not _is_record(name):
            rows = _rows(expected / name)
            difference = _compare_rows(rows, _rows(found / name) if name in others else [])
            if difference.lost + difference.doubled + difference.different:
                difference.names.append(name)
            total += difference
    return total


def half_written(folder: Path) -> list[str]:
    """Files that anyone who looks now would take for whole, and that cannot be read."""
    broken = []
    for name in sorted(_names(folder)):
        path = folder / name
        is_hidden = any(part.startswith((".", "_")) for part in Path(name).parts)
        if is_hidden or _is_record(name):
            continue
        try:
            if name.endswith(_CONTENTS[:-1]):
                _rows(path)
            elif name.endswith(".json"):
                json.loads(path.read_text("utf-8"))
        except Exception as error:
            broken.append(f"{name}: {type(error).__name__}: {error}")
    return broken


def _is_record(name: str) -> bool:
    return any(part.endswith(_RECORDS) for part in Path(name).parts[:-1])


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


Rows = list[tuple[Hashable, Hashable]]  # a key, and all the rest


def _rows(path: Path) -> Rows:
    if path.suffix == ".parquet":
        return _table_rows(path)
    if path.suffix == ".tar":
        samples = members_of(path, strict=True)
        return [(key, tuple(members.items())) for key, members in samples]
    if path.suffix == ".npy":
        return [(number, row.tobytes()) for number, row in enumerate(np.load(path))]
    if path.suffix == ".safetensors":
        return [(name, array.tobytes()) for name, array in load_file(path).items()]
    lines = path.read_text("utf-8").splitlines()
    facts: Iterable[Mapping[str, Any]] = (json.loads(line) for line in lines)
    return [((one.get("step"), one.get("phase")), one.get("loss")) for one in facts]


def _table_rows(path: Path) -> Rows:
    """The rows as text, in which NaN is itself."""
    rows = pq.ParquetFile(path).read().to_pylist()
    return [(repr([row[name] for name in _KEYS if name in row] or row), repr(row)) for row in rows]


def _compare_rows(expected: Rows, found: Rows) -> Difference:
    before, after = (Counter(key for key, _ in rows) for rows in (expected, found))
    lost, doubled = (before - after).total(), (after - before).total()
    unlike = (Counter(found) - Counter(expected)).total()
    return Difference(len(expected), lost, doubled, max(0, unlike - doubled))
