"""Files of named arrays, published whole and memory-mapped when read.

They are safetensors files, whose header locates each array, so a few rows of a large array cost a
few reads. Files in an object store are copied once to a temporary folder of this machine, for all
tasks that run here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import aside_of, published, remove_leftovers
from ncclean.base.scratch import scratch_folder

_TYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "U16": np.uint16, "U64": np.uint64, "I16": np.int16,
    "I32": np.int32, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_SUFFIX = ".arrays"
_OPEN_FILES = 10_240  # the most that macOS allows

_CODES = {np.dtype(kind): code for code, kind in _TYPES.items()}

Arrays = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[tuple[int, ...], Any]]  # shape and type of each array


@dataclass(frozen=True)
class ArrayFolder:
    """A folder of files of named arrays, local or in an object store.

    Files are published whole and memory-mapped when read. The object can be sent to a cluster's
    workers. `run` separates the local copies of files in a store from those of another run with the
    same names.
    """

    place: str
    run: str = ""

    def path(self, name: str) -> UPath:
        return stores.location(self.place) / f"{name}{_SUFFIX}"

    def names(self) -> set[str]:
        """Return the names of the array files in the folder."""
        folder = stores.location(self.place)
        if not stores.is_url(self.place) and not folder.is_dir():
            return set()
        entries = stores.ask("list", folder, stores.listing, folder)
        return {
            Path(entry.name).name.removesuffix(_SUFFIX)
            for entry in entries
            if entry.name.endswith(_SUFFIX)
        }

    def has(self, name: str) -> bool:
        return stores.exists(self.path(name))

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Publish arrays as a file. Raises `InputError` if it cannot be written."""
        shapes = {key: (array.shape, array.dtype) for key, array in arrays.items()}
        header, _, _ = _layout(shapes)
        with published(self.path(name)) as aside, open(aside, "wb", buffering=0) as file:
            file.write(header)
            for key in _in_order(shapes):
                np.ascontiguousarray(arrays[key]).tofile(file)

    @contextlib.contextmanager
    def writing(self, name: str, shapes: Shapes) -> Iterator[Arrays]:
        """Yield zeroed arrays mapped for writing; publish their file at the end.

        Raises `InputError` if the disk has no room for them.
        """
        with published(self.path(name)) as aside:
            yield _created(aside, shapes)

    @contextlib.contextmanager
    def scratch(self, shapes: Shapes) -> Iterator[Arrays]:
        """Yield zeroed arrays mapped to a temporary file on this machine, for writing."""
        if stores.is_url(self.place):
            with scratch_folder() as folder:
                yield stores.ask("write", folder, _created, folder / "arrays", shapes)
            return
        path = self.path("scratch")
        with aside_of(Path(str(path))) as aside:
            yield stores.ask("write", path, _created, aside, shapes)

    def load(self, name: str) -> Arrays:
        """Map the arrays of a file, read-only. Raises `InputError` if it cannot be read."""
        path = self.path(name)
        return stores.ask("read", path, _mapped, self._local(path))

    def remove(self, names: Iterable[str]) -> None:
        """Delete array files that are no longer needed, and their local copies."""
        paths = [self.path(name) for name in names]
        for path in paths if stores.is_url(self.place) else ():
            (self._cache() / path.name).unlink(missing_ok=True)
        stores.remove_files(paths)

    def remove_leftovers(self) -> None:
        """Delete the temporary array files that killed processes left."""
        remove_leftovers(stores.location(self.place), _Names())

    def forget(self) -> None:
        """Delete this machine's copies of array files from a store."""
        if stores.is_url(self.place):
            shutil.rmtree(self._cache(), ignore_errors=True)

    def _local(self, path: UPath) -> Path:
        if not stores.is_url(self.place):
            return Path(str(path))
        copy = self._cache() / path.name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            # Containers may share the folder, and their processes have the same number.
            aside = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}")
            with contextlib.ExitStack() as stack:
                stack.callback(aside.unlink, missing_ok=True)
                stores.ask("read", path, path.fs.get_file, path.path, str(aside))
                os.replace(aside, copy)
        return copy

    def _cache(self) -> Path:
        digest = hashlib.blake2b(f"{self.place} {self.run}".encode(), digest_size=8).hexdigest()
        return Path(tempfile.gettempdir()) / f"ncclean-arrays-{digest}"


class _Names:
    """The names of all such files."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.endswith(_SUFFIX)


def _in_order(shapes: Shapes) -> list[str]:
    """Sort the widest types first, so that every array is aligned."""
    return sorted(shapes, key=lambda name: -np.dtype(shapes[name][1]).itemsize)


def _layout(shapes: Shapes) -> tuple[bytes, dict[str, dict[str, Any]], int]:
    """Return the head of a file, the header entry of each array, and the total bytes."""
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for name in _in_order(shapes):
        shape, kind = shapes[name]
        begin, end = end, end + math.prod(shape) * np.dtype(kind).itemsize
        code = _CODES[np.dtype(kind)]
        entries[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, entries, end


def _created(file: Path, shapes: Shapes) -> Arrays:
    header, entries, size = _layout(shapes)
    with open(file, "wb") as stream:
        stream.write(header)
        stream.flush()
        total = len(header) + size
        if hasattr(os, "posix_fallocate"):  # a write to a full disk must not end the process
            os.posix_fallocate(stream.fileno(), 0, total)
        stream.truncate(total)
    content = np.memmap(file, np.uint8, "r+").view(np.ndarray)
    return dict(_arrays(content[len(header) :], entries))


def _mapped(file: Path) -> Arrays:
    _hold_many_files()
    # A plain view: indexing a memmap costs microseconds more, and there are many lists.
    content = np.memmap(file, np.uint8, "r").view(np.ndarray)
    base = 8 + int.from_bytes(content[:8].tobytes(), "little")
    return dict(_arrays(content[base:], json.loads(content[8:base].tobytes())))


@functools.cache
def _hold_many_files() -> None:
    """Raise the limit on open files, 256 or 1,024 on many systems: mapped files stay open."""
    import resource

    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _arrays(
    content: np.ndarray, header: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, np.ndarray]]:
    for name, array in header.items():
        if name == "__metadata__":
            continue
        kind, shape = _TYPES[str(array["dtype"])], tuple(array["shape"])
        yield name, content[slice(*array["data_offsets"])].view(kind).reshape(shape)
