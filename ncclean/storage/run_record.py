"""Record a run: its identity, its progress, and its own files.

A record is `run.json`, which holds the command and the identity of the run: everything that its
output depends on. Beside it are the entries, a small file for each finished step, and the lease of
the writing process. One rule holds for every command whose output exists already:

- A run with the same identity resumes; another one is refused with every difference spelled out.
- Files in the way that no record lists are refused.
- `--overwrite` removes only the files that the record lists and that lie in the output, and says
  how many.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import create, published, reported
from ncclean.base.text_files import read_text
from ncclean.base.url_secrets import values_without_secrets
from ncclean.errors import InputError
from ncclean.storage.differences import check_same, differences
from ncclean.storage.earlier import earlier_files, earlier_lines
from ncclean.storage.entries import Entries
from ncclean.storage.lease import Lease
from ncclean.storage.made_files import MadeFiles, OwnPlace, absolute, remove_with_leftovers

logger = logging.getLogger(__name__)

Identity = Mapping[str, Any]
Files = Callable[[Identity], Iterable[UPath]]
RUN = "run.json"
LARGEST_RECORD = 1 << 28  # with the entries of 100,000 shards


def no_files(identity: Identity) -> Iterable[UPath]:
    """Return no files, for runs whose output files do not follow from their identity.

    It is the default of `RunRecord`.
    """
    return ()


@dataclass
class RunRecord:
    """The record of one run of `command`, from which the same call resumes.

    `entries` are its steps in order, except those of the record itself; `resumed` says whether an
    earlier run wrote the record. File names are relative to `base` (the output, a folder or a
    file), so they stay valid when the output is moved. `files` names the files that follow from an
    identity, so that a run over many shards need not list them one by one.

    The process that opened a record is its only writer, see `Lease`.
    """

    path: UPath
    command: str
    identity: dict[str, Any]
    base: UPath
    files: Files = no_files
    entries: list[dict[str, Any]] = field(default_factory=list)
    resumed: bool = False
    _is_cleared: bool = False
    _lease: Lease | None = None

    def __post_init__(self) -> None:
        self._made = MadeFiles(self.base)
        self._steps = Entries(self.path.with_suffix(".entries"))

    @classmethod
    def open(
        cls,
        path: UPath,
        command: str,
        identity: Identity,
        *,
        overwrite: bool = False,
        base: UPath | None = None,
        files: Files = no_files,
        taken: Callable[[], UPath | None] | None = None,
        compare: Callable[[Identity, Identity], list[str]] = differences,
    ) -> RunRecord:
        """Begin a run, or resume the one that the record at `path` describes.

        `base` defaults to the folder of the record. The files that `files` names must not exist
        yet, and without a record, `taken` looks for other output in the way. `compare` says how an
        earlier identity differs from this one.

        Raises `ResumeError` if the record is another run's, and `InputError` if something is in the
        way, another process is writing to the output or the record cannot be read.
        """
        now = values_without_secrets(json.loads(json.dumps(identity)))
        record = cls(path, command, now, base or path.parent, files)
        is_new = not exists(path)
        if is_new:
            record._check_free(taken)
        record._lease = Lease(path.with_suffix(".lease"))
        try:
            record._adopt()
            before = record._read()
            if before is None:
                record._begin()
            elif overwrite or record._is_cleared:
                record._check_free(None, before)
                if not overwrite:
                    record._check_removed(before)
                record._remove(before)
                record._begin()
            else:
                with record.reading():
                    clauses = compare(before, now)
                check_same(record.base, clauses)
                record.resumed = True
        except BaseException:
            record.close()
            raise
        return record

    @classmethod
    def load(
        cls, path: UPath, command: str, *, base: UPath | None = None, to_write: bool = False
    ) -> RunRecord | None:
        """Load the run record at `path`; None if it holds no run.

        Without `to_write`, nothing can be appended, and another process may write to it. Raises
        `InputError` if it is another command's record.
        """
        if not exists(path):
            return None
        record = cls(path, command, {}, base or path.parent, resumed=True)
        if to_write:
            record._lease = Lease(path.with_suffix(".lease"))
        try:
            before = record._read()
        except BaseException:
            record.close()
            raise
        if before is None or record._is_cleared:
            record.close()
            return None
        record.identity = before
        return record

    @classmethod
    def clear(
        cls,
        path: UPath,
        command: str,
        *,
        base: UPath | None = None,
        files: Files = no_files,
        says: bool = True,
    ) -> None:
        """Delete a run's record at `path` and the files that it lists; do nothing without a record.

        `says` logs how many files of an earlier run there were; a finishing run need not.
        """
        if not exists(path):
            return
        with cls(path, command, {}, base or path.parent, files) as record:
            record._lease = Lease(path.with_suffix(".lease"))
            record._adopt()
            before = record._read()
            if before is not None:
                record._remove(before, says)
            stores.remove_files([path])

    def append(self, kind: str, /, **fields: Any) -> None:
        """Append an entry to the run record; it is stored on return."""
        self.check()
        self._steps.add({"kind": kind, **values_without_secrets(fields)})

    def made(self, *paths: UPath | Path) -> None:
        """List files in the record as made by this run, before they are published."""
        names = self._made.new_names(paths)
        if names:
            self.append("made", files=names)
            self._made.add(names)

    def listed(self) -> Iterator[UPath]:
        """Yield the paths of all files of this run, whether written yet or not."""
        return self._listed(self.identity)

    def check(self) -> None:
        """Raise `InputError` if another process has begun to write to the output."""
        if self._lease is None:
            raise RuntimeError(f"the record {self.path} is closed")
        self._lease.check()

    def close(self) -> None:
        if self._lease is not None:
            lease, self._lease = self._lease, None
            lease.release()

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self) -> dict[str, Any] | None:
        """Load an earlier run's record; return its identity, or None."""
        first, lines = self._recorded()
        if first is None:
            return None
        identity = first.get("identity")
        if first.get("kind") != "run" or not isinstance(identity, dict):
            raise unreadable(self.path)
        if first.get("command") != self.command:
            raise InputError(
                f"{self.base} belongs to `ncclean {first.get('command')}`; choose another --out"
            )
        self._is_cleared = bool(first.get("cleared"))
        for entry in lines:
            kind = entry.get("kind")
            if kind == "made":
                names = entry.get("files")
                if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                    raise unreadable(self.path)
                self._made.add(names)
            elif isinstance(kind, str):
                self.entries.append(entry)
            else:
                raise unreadable(self.path)
        return identity

    def _adopt(self) -> None:
        """Convert a record of 0.3 to this version."""
        if exists_now(self.path) or not (files := earlier_files(self.path)):
            return
        first, lines = self._recorded()
        if first is None or first.get("kind") != "run":
            raise unreadable(self.path)
        entries = list(lines)
        cleared = any(entry.get("kind") == "cleared" for entry in entries)
        run = {**first, "entries": entries, "cleared": cleared}
        create(self.path, json.dumps(run).encode())
        stores.remove_files(files)

    def compact(self) -> None:
        """Move the entries of the run record into one file, for a finished run with many."""
        self.check()
        with reported(None), published(self.path) as aside:
            aside.write_bytes(self._run(self.identity, entries=[*self._recorded()[1]]))
        self._steps.clear()

    def _recorded(self) -> tuple[dict[str, Any] | None, Iterable[dict[str, Any]]]:
        """The run and its entries, as this version or 0.3 has recorded them."""
        if not exists_now(self.path):
            lines = earlier_lines(self.path)
            return next(lines, None), lines
        try:
            first = json.loads(read_text(str(self.path), LARGEST_RECORD))
        except (ValueError, RecursionError) as error:
            raise unreadable(self.path) from error
        if not isinstance(first, dict):
            raise unreadable(self.path)
        return first, itertools.chain(first.get("entries", ()), self._steps)

    def _begin(self) -> None:
        self.entries, self._made, self._is_cleared = [], MadeFiles(self.base), False
        self._steps.clear()
        if not create(self.path, self._run(self.identity)):
            raise InputError(f"another run has begun in {self.path.parent}: use another --out")

    def _run(self, identity: Identity, **more: Any) -> bytes:
        run = {"kind": "run", "command": self.command, "identity": identity, **more}
        return json.dumps(run).encode()

    def _remove(self, identity: Identity, says: bool = True) -> None:
        own_files = list(self._listed(identity))
        with reported(None), published(self.path) as aside:
            # A run killed from here on leaves nothing to resume.
            aside.write_bytes(self._run(identity, cleared=True))
        count = remove_with_leftovers(own_files)
        self._steps.clear()
        stores.remove_files([self.path])
        if count and says:
            logger.warning(
                "removed %s of an earlier `ncclean %s` from %s",
                f"{count:,} file{'s' * (count != 1)}",
                self.command,
                self.base,
            )

    def _listed(self, identity: Identity) -> Iterator[UPath]:
        """Yield the files that the record lists in its place.

        Raises `InputError` if it is damaged.
        """
        place = OwnPlace(self.base, self.path.parent)
        with self.reading():
            yield from filter(place.holds, self.files(identity))
        yield from filter(place.holds, self._made.paths())

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that turns errors while reading this record into an `InputError`."""
        return reading(self.path)

    def _check_removed(self, before: Identity) -> None:
        """Raise `InputError` if an interrupted removal left files: they must be removed first."""
        left = stores.present_files(self._listed(before))
        if left:
            raise InputError(
                f"{self.base} is half removed: its record is to remove {left[0]} and "
                f"{len(left) - 1:,} other files. Use --overwrite to remove them, or choose "
                "another --out"
            )

    def _check_free(
        self, taken: Callable[[], UPath | None] | None, before: Identity | None = None
    ) -> None:
        present = stores.present_files(self.files(self.identity))
        if present and before is not None:
            own_files = set(map(absolute, self._listed(before)))
            present = [path for path in present if absolute(path) not in own_files]
        in_the_way = next(iter(present), None) or (taken() if taken else None)
        if in_the_way is not None:
            raise refusal(in_the_way, self.command)


@contextlib.contextmanager
def reading(path: UPath) -> Iterator[None]:
    """Turn errors in this context, while reading a damaged run record, into an `InputError`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise unreadable(path) from error


def unreadable(path: UPath) -> InputError:
    """Return the `InputError` for a file that is not a run record."""
    return InputError(
        f"{path} is not a record that this version of ncclean can read; choose another "
        "--out, or remove it with its output"
    )


def exists(path: UPath) -> bool:
    """Check whether there is a run record at `path`, of this version or of 0.3."""
    return exists_now(path) or bool(earlier_files(path))


def exists_now(path: UPath) -> bool:
    """Check whether there is a run record of this version at `path`."""
    return stores.exists(path)


def refusal(in_the_way: UPath, command: str) -> InputError:
    """Return the error for a file that is in the way and that the command did not make."""
    return InputError(
        f"{in_the_way} is in the way: no record lists it as made by `ncclean {command}`. Remove "
        "it, or choose another --out"
    )
