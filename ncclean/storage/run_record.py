"""The record of a run: its identity, its progress, and the files that are its own.

A record is a log (`ncclean.storage.log`) whose first line holds the command and the identity of
the run: everything that its output depends on. One rule holds for every command whose output
exists already:

- A run with the same identity resumes; another one is refused with every difference spelled out.
- Files in the way that no record lists are refused.
- `--overwrite` removes the files that the record lists and that lie in the output, nothing else,
  and says how many.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from upath import UPath

from ncclean import stores
from ncclean.errors import InputError
from ncclean.storage.differences import check_same, differences
from ncclean.storage.log import Log, exists, open_log, read_log
from ncclean.storage.made_files import MadeFiles, OwnPlace, absolute, remove_with_leftovers
from ncclean.url_secrets import values_without_secrets

logger = logging.getLogger(__name__)

Identity = Mapping[str, Any]
Files = Callable[[Identity], Iterable[UPath]]
OnEntry = Callable[[dict[str, Any]], None]
_FIRST = b'{"kind": "run"'  # of every record


def no_files(identity: Identity) -> Iterable[UPath]:
    """Return no files, for runs whose output files do not follow from their identity."""
    return ()


@dataclass
class RunRecord:
    """The record of one run of `command`.

    `entries` are the lines after the first one, except those of the record itself; `resumed` says
    whether an earlier run wrote the record. Names of files are kept relative to `base` (the output,
    a folder or a file), so that they stay right when the output is moved. `files` names the files
    that follow from an identity, so that a run over many shards need not list them one by one.

    An open record of a local run is locked: two runs on one output are refused. Object stores have
    no locks.
    """

    path: UPath
    command: str
    identity: dict[str, Any]
    base: UPath
    files: Files = no_files
    entries: list[dict[str, Any]] = field(default_factory=list)
    resumed: bool = False
    _is_cleared: bool = False
    _log: Log | None = None

    def __post_init__(self) -> None:
        self._made = MadeFiles(self.base)

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
        on_entry: OnEntry | None = None,
    ) -> RunRecord:
        """Begin a run, or resume the one that the record at `path` describes.

        `base` is the folder of the record unless said otherwise. The files that `files` names must
        not exist yet, and where there is no record, `taken` looks for other output in the way.
        `compare` says how an earlier identity differs from this one. `on_entry` receives the
        entries of an earlier run before `compare` is called; they are not kept then.

        Raises `ResumeError` if the record is that of another run, and `InputError` if something
        is in the way, another process is writing to the record or it cannot be read.
        """
        now = values_without_secrets(json.loads(json.dumps(identity)))
        record = cls(path, command, now, base or path.parent, files)
        is_new = not exists(path)
        if is_new:
            record._check_free(taken)
        try:
            before = record._read(on_entry)
            if before is None:
                if not is_new:  # a crash has left a record without a run
                    record._check_free(taken)
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
        cls,
        path: UPath,
        command: str,
        *,
        base: UPath | None = None,
        files: Files = no_files,
        on_entry: OnEntry | None = None,
        read_only: bool = False,
    ) -> RunRecord | None:
        """Load the run record at `path`; None if it holds no run.

        With `read_only` it is not locked and cannot be appended to. Raises `InputError` if it is
        the record of another command.
        """
        if not exists(path):
            return None
        record = cls(path, command, {}, base or path.parent, files, resumed=True)
        try:
            before = record._read(on_entry, read_only)
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
        """Delete the files that the record lists, and the record; without a record, nothing.

        `says` logs how many files of an earlier run these were; a run that ends needs not.
        """
        if not exists(path):
            return
        with cls(path, command, {}, base or path.parent, files) as record:
            before = record._read(lambda entry: None)
            if before is not None:
                record._remove(before, says)
            record._open_log.remove()

    def append(self, kind: str, /, **fields: Any) -> None:
        """Append an entry to the record; it is on disk on return, in a store within seconds."""
        self._open_log.append({"kind": kind, **values_without_secrets(fields)})

    def made(self, *paths: UPath | Path) -> None:
        """List files as made by this run, before they are published."""
        names = self._made.new_names(paths)
        if names:
            self.append("made", files=names)
            self.flush()
            self._made.add(names)

    def listed(self) -> Iterator[UPath]:
        """Paths of the files of this run, whether written yet or not."""
        return self._listed(self.identity)

    def flush(self) -> None:
        """Sync every entry of the record to disk."""
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        if self._log is not None:
            log, self._log = self._log, None
            log.close()

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _open_log(self) -> Log:
        if self._log is None:
            raise RuntimeError(f"the record {self.path} is closed")
        return self._log

    def _read(self, on_entry: OnEntry | None, read_only: bool = False) -> dict[str, Any] | None:
        """Take in an earlier run's lines; returns its identity, None if there is none."""
        if read_only:
            lines = read_log(self.path)
        else:
            self._log, lines = open_log(self.path)
        first = next(lines, None)
        if first is None and not stores.is_url(self.path):
            self._check_torn()
        if first is None or (stores.is_url(self.path) and first.get("kind") != "run"):
            return None  # nothing, or what is left of objects that were being cleared
        identity = first.get("identity")
        if first.get("kind") != "run" or not isinstance(identity, dict):
            raise self._unreadable()
        if first.get("command") != self.command:
            raise InputError(
                f"{self.base} belongs to `ncclean {first.get('command')}`; choose another --out"
            )
        for entry in lines:
            kind = entry.get("kind")
            if kind == "made":
                names = entry.get("files")
                if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                    raise self._unreadable()
                self._made.add(names)
            elif kind == "cleared":
                self._is_cleared = True
            elif not isinstance(kind, str):
                raise self._unreadable()
            elif on_entry is not None:
                with self.reading():
                    on_entry(entry)
            else:
                self.entries.append(entry)
        return identity

    def _check_torn(self) -> None:
        """Raise for a file without records, unless a crash cut the first line short."""
        with open(str(self.path), "rb") as file:
            begin = file.read(len(_FIRST)).strip(b"\0")  # a power cut may leave these
        if not _FIRST.startswith(begin):
            raise self._unreadable()

    def _begin(self) -> None:
        self._open_log.clear()
        self.entries, self._made, self._is_cleared = [], MadeFiles(self.base), False
        self.append("run", command=self.command, identity=self.identity)

    def _remove(self, identity: Identity, says: bool = True) -> None:
        own = list(self._listed(identity))
        self.append("cleared")  # a run killed from here on leaves nothing to resume
        self.flush()
        count = remove_with_leftovers(own)
        if count and says:
            logger.warning(
                "removed %s of an earlier `ncclean %s` from %s",
                f"{count:,} file{'s' * (count != 1)}",
                self.command,
                self.base,
            )

    def _listed(self, identity: Identity) -> Iterator[UPath]:
        """Yield the files that the record lists in its place. Raises `InputError` if it is odd."""
        place = OwnPlace(self.base, self.path.parent)
        with self.reading():
            yield from filter(place.holds, self.files(identity))
        yield from filter(place.holds, self._made.paths())

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn errors while reading a damaged record into an `InputError`."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._unreadable() from error

    def _unreadable(self) -> InputError:
        return InputError(
            f"{self.path} is not a record that this version of ncclean can read; choose another "
            "--out, or remove it with its output"
        )

    def _check_removed(self, before: Identity) -> None:
        """Raise `InputError` if an interrupted removal has left files: to go on is to remove."""
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
            own = set(map(absolute, self._listed(before)))
            present = [path for path in present if absolute(path) not in own]
        in_the_way = next(iter(present), None) or (taken() if taken else None)
        if in_the_way is not None:
            raise refusal(in_the_way, self.command)


def refusal(in_the_way: UPath, command: str) -> InputError:
    """The error that refuses to replace a file that the command did not make."""
    return InputError(
        f"{in_the_way} is in the way: no record lists it as made by `ncclean {command}`. Remove "
        "it, or choose another --out"
    )
