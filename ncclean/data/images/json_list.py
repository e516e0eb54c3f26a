"""Read lists of objects in a json, one entry at a time: files of any size take little memory.

A list may be the whole file, or a value of its top-level object. A unit of a list begins at the
byte of its first entry.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ncclean.data.images.text_rows import open_text
from ncclean.errors import ShardError, one_line

_BLOCK = 1 << 20
_BEGINNING = 1 << 20  # characters that tell the layout of a file
_LONGEST_NAME = 256
_LONGEST_ENTRY = 4 << 20  # characters
_LONGEST_REST = 16 << 20  # characters after the list
_BETWEEN = re.compile(r"[\s,]*")
_NEXT = re.compile(r"\]\s*,\s*\"")  # after a list
# A string without an end runs to the end of the text: no part of it is scanned twice.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.S)
_DECODER, _DECODER_OF_PAIRS = json.JSONDecoder(), json.JSONDecoder(object_pairs_hook=list)


class JsonList:
    """The entries of a list in order; `offset` is the byte at which the next one begins.

    The list has a `name` in the file's top-level object, or is the whole file. Raises `ShardError`
    for a file without it, one that is broken after its list or ends early, and `OSError` if it
    cannot be read. If the object `has_others`, lists after this one are not checked; otherwise none
    may have entries whose names look `is_alike`: they would be missed.
    """

    def __init__(
        self,
        url: str,
        name: str | None = None,
        has_others: bool = False,
        is_alike: Callable[[list[str]], bool] = lambda names: False,
    ) -> None:
        self._url, self._name, self._has_others = url, name, has_others
        self._is_alike = is_alike
        self._what = "its list" if name is None else f"its list `{name}`"
        self._head = "[" if name is None else f'{{"{name}": ['
        begin = r"\ufeff?\s*\[" if name is None else rf'"{name}"\s*:\s*\['
        self._begin = re.compile(begin)
        self._stream = open_text(url)
        self._buffer, self._place, self.offset = "", 0, 0

    def __enter__(self) -> JsonList:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def seek(self, offset: int) -> None:
        """Continue with the entry that starts at a byte of the file; 0 is the first entry."""
        if offset:
            self._stream.seek(offset)
            self._buffer, self._place, self.offset = "", 0, offset
        else:
            self._skip_head()

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._take(_BETWEEN.match(self._buffer, self._place).end())  # type: ignore[union-attr]
            if self._place == len(self._buffer):
                if not self._read():
                    raise ShardError(f"{self._url} ends in the middle of {self._what}")
                continue
            if self._buffer[self._place] == "]":
                self._check_rest()
                return
            value, end = self._decoded()
            self._take(end)
            yield value

    def _skip_head(self) -> None:
        find = self._begin.match if self._name is None else self._begin.search
        while (begin := find(self._buffer, self._place)) is None:
            # Drop what is not scanned again; a name may span two blocks.
            self._take(max(self._place, len(self._buffer) - _LONGEST_NAME))
            if (self._name is None and self._buffer.strip()) or not self._read():
                raise ShardError(f"{self._url} lacks {self._what}")
        self._take(begin.end())

    def _check_rest(self) -> None:
        """Raise `ShardError` unless the list is followed by the end of its object.

        A misplaced bracket would end it early and silently lose what follows.
        """
        while len(self._buffer) - self._place <= _LONGEST_REST:
            if not self._read():
                text = self._head + self._buffer[self._place :]
                try:
                    rest = _DECODER_OF_PAIRS.decode(text)
                except (ValueError, RecursionError) as error:
                    where = self._where(error, self._place - len(self._head))
                    raise ShardError(f"{self._url} is broken behind {self._what}{where}") from None
                if self._name and [name for name, _ in rest].count(self._name) > 1:
                    raise ShardError(f"{self._url} has {self._what} twice: only the first is read")
                for name, value in rest[1:] if self._name else ():
                    if self._is_alike(_names_in(value)):
                        raise ShardError(
                            f"{self._url} has another list, `{name}`, which is not read"
                        )
                return
        if not (self._has_others and _NEXT.match(self._buffer, self._place)):
            raise ShardError(f"{self._url} has too much behind {self._what}")

    def _decoded(self) -> tuple[Any, int]:
        while True:
            try:
                return _DECODER.raw_decode(self._buffer, self._place)
            except RecursionError:
                raise ShardError(
                    f"{self._url}: an entry of {self._what} is nested too deeply"
                ) from None
            except ValueError as error:
                if len(self._buffer) - self._place > _LONGEST_ENTRY:
                    raise ShardError(
                        f"{self._url}: an entry of {self._what} has more than "
                        f"{_LONGEST_ENTRY:,} characters"
                    ) from None
                if not self._read():
                    raise ShardError(f"{self._url} is broken{self._where(error)}") from None

    def _where(self, error: Exception, shift: int = 0) -> str:
        """Return the text of an error with its byte offset in the file, moved by `shift`."""
        if not isinstance(error, json.JSONDecodeError):
            return f": {one_line(error)}"
        before = self._buffer[self._place : error.pos + shift]
        return f" at byte {self.offset + _size(before):,}: {error.msg}"

    def _read(self) -> bool:
        """Read another block after the remaining text; return False at the end of the file."""
        block = self._stream.read(_BLOCK)
        self._buffer = self._buffer[self._place :] + block
        self._place = 0
        return bool(block)

    def _take(self, end: int) -> None:
        self.offset += _size(self._buffer[self._place : end])
        self._place = end


@functools.lru_cache(maxsize=64)  # each layout calls this; the planner clears the cache
def first_entries(url: str) -> Mapping[str | None, Mapping[str, Any]]:
    """Return the first objects of the lists in the first megabyte of a file, by list name.

    A list is the whole file, and has no name, or a value of its top-level object. Raises
    `ShardError` if the file cannot be read.
    """
    try:
        with open_text(url) as stream:
            text = stream.read(_BEGINNING)
    except OSError as error:
        raise ShardError(f"{url} cannot be read as json: {one_line(error)}") from error
    firsts: dict[str | None, dict[str, Any]] = {}
    depth, name = 0, None
    for token in _TOKENS.finditer(text):
        if token[0] in "]}":
            depth -= 1
        elif token[0] in "[{":
            if token[0] == "[" and depth == (name is not None):
                with contextlib.suppress(ValueError, RecursionError, StopIteration):
                    begin = _BETWEEN.match(text, token.end()).end()  # type: ignore[union-attr]
                    entry, _ = _DECODER.raw_decode(text, begin)
                    if isinstance(entry, dict):
                        firsts.setdefault(name, entry)
            depth += 1
        elif depth == 1:
            name = token[0][1:-1]
        if depth == 0 or (depth == 1 and name is None and token[0] == "["):
            break  # after the object, or in a list that is the file
    return firsts


def _names_in(value: object) -> list[str]:
    """Return the names in the first object of a list; objects are lists of pairs."""
    first = value[0] if isinstance(value, list) and value else None
    pairs = first if isinstance(first, list) else []
    return [pair[0] for pair in pairs if isinstance(pair, tuple)]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
