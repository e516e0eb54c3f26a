"""Texts that say what a file holds, in few lines that change with it."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Times, speeds and processes differ from run to run; pictures in pages, with their library.
_PASSING = re.compile(
    r"data:image/[^\"') ]*|\d{4}-\d\d-\d\d([T ][\d:.+]*)?|\d+ [A-Z][a-z]+ 20\d\d|[\d.,]+ ?[a-z]*/s"
    r"|\b[\d.,]+ ?(s|ms|min|h)\b|(?m:^(time|speed|time went to) .*$\n?(^ {6,}\S.*$\n?)*)"
    r'|"(\w*seconds\w*|\w*_per_second|data_wait|\w+_time|duration)": ?[\d.e+-]+'
)
_DECIMAL = re.compile(r"(?<![\w.])-?\d+(?:\.\d+|(?:\.\d+)?e[+-]?\d+)(?![\w.])")


def text(words: str) -> str:
    """The text without what passes, so that a person can read what has changed."""
    return _PASSING.sub("~", words)


def times() -> dict[str, int]:
    """When each file or folder of the current folder was written last, by its name."""
    return {
        path.name: max((one.stat().st_mtime_ns for one in [path, *path.rglob("*")]), default=0)
        for path in Path().iterdir()
        if is_output(path)
    }


def digest(path: Path) -> list[str]:
    """Lines about a file or folder: of tables a line a column, else the sum of numbers and a hash.

    What depends on the order does so in the lines, too.
    """
    if path.is_dir():
        files = sorted(
            file for file in path.rglob("*") if file.is_file() and is_output(file.relative_to(path))
        )
        return [f"{file.relative_to(path)}: {line}" for file in files for line in digest(file)]
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        columns = zip(table.column_names, table.columns, strict=True)
        return [f"{name} {column.type}: {_values(column)}" for name, column in columns]
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        return [f"{array.dtype} {array.shape}: {_many(array.ravel().tolist())}"]
    if path.suffix == ".tar":
        return list(_members(path))
    if path.suffix in (".json", ".jsonl", ".csv", ".txt", ".yaml", ".tex"):
        return [_text(path.read_text("utf-8"))]
    return [_hash(path.read_bytes())]


def is_output(path: Path) -> bool:
    """Whether it says what a command made: working folders, weights and drawings do not."""
    passing = ("logs", "stages", "tensorboard", "checkpoints", "run.entries", "figures")
    return not any(
        part.startswith(".") or part.endswith((".work", ".safetensors", ".html")) or part in passing
        for part in path.parts
    )


def _members(path: Path) -> Iterator[str]:
    """A line for each extension, and one for the names."""
    contents: dict[str, list[bytes]] = {}
    with tarfile.open(path) as tar:
        names = tar.getnames()
        for member in filter(tarfile.TarInfo.isreg, tar):
            file = tar.extractfile(member)
            assert file is not None
            contents.setdefault(Path(member.name).suffix, []).append(file.read())
    yield f"{len(names)} members {_hash(json.dumps(names).encode())}"
    for extension, files in sorted(contents.items()):
        if extension == ".json":
            yield f"json {_text(b''.join(files).decode('utf-8', 'replace'))}"
        else:
            yield f"{extension} {_hash(b''.join(files))}"


def _text(words: str) -> str:
    passed = text(words)
    numbers = [float(text) for text in _DECIMAL.findall(passed)]
    return f"{_hash(_DECIMAL.sub('#', passed).encode())} {_numbers(numbers)}"


def _values(column: pa.ChunkedArray) -> str:
    return f"{column.null_count} null of {len(column)}, {_many(column.to_pylist())}"


def _many(values: list[Any]) -> str:
    numbers, others = [], []
    for value in _flat(values):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        (numbers if is_number else others).append(value)
    lines = [_numbers(numbers)] if numbers else []
    others = [value for value in others if value is not None]
    if others:
        lines.append(_hash(text(json.dumps(others, default=str)).encode()))
    return " ".join(lines) or "nothing"


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from _flat(value.keys())
            yield from _flat(value.values())
        elif isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _numbers(numbers: list[float]) -> str:
    """Their number, the sum of their sizes, and one that weighs each by its place."""
    array = np.array(numbers, dtype=np.float64)
    finite = np.isfinite(array)
    array = array[finite]
    turned = np.cos(np.arange(len(array)))
    endless = f", {(~finite).sum()} not finite" if not finite.all() else ""
    sums = ", ".join(f"{value:.6g}" for value in (np.abs(array).sum(), array @ turned))
    return f"n {len(numbers)}{endless}: {sums}"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:10]
