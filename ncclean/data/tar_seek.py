"""Find an image of a tar by a few reads, where its keys are in order: as img2dataset writes them.

Keys tell about where a sample lies, as words tell the page of a dictionary. What a read shows is
believed as far as the headers of members that it shows follow one another, and only for the key
that is asked for; a tar in another order, or with headers that are not ordinary, is left to a walk.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import NamedTuple

from ncclean.data.sample_groups import picture_of, sample_member
from ncclean.data.tar_walk import BLOCK, ordinary_header

_WINDOW = 128 << 10
_WIDE = 4 << 20  # where the samples are large
_MOST_READS = 24
_MAGIC, _MAGIC_AT = b"ustar", 257

Read = Callable[[int, int], bytes]


class Member(NamedTuple):
    """A member of a sample, or a file that belongs to none: then `key` is empty."""

    key: str
    extension: str
    begin: int
    content: int
    size: int


class Window:
    """Bytes of a tar from `begin` on, and the members whose headers lie in them."""

    def __init__(self, begin: int, data: bytes) -> None:
        self.begin, self.data = begin, data
        self.members = list(_members(begin, data))
        self.keys = [key for key, _ in itertools.groupby(m.key for m in self.members if m.key)]

    def place(self, number: int) -> Member:
        """The first member that is shown of the sample of a key, by the key's number."""
        return next(member for member in self.members if member.key == self.keys[number])

    def image(self, key: str, image_key: str | None) -> Member | None:
        """The picture of a sample, whose members the window shows from the first one on.

        None where a better one may lie behind the window.
        """
        members = {m.extension: m for m in reversed(self.members) if m.key == key}
        picture = picture_of(list(reversed(members)), image_key)
        is_final = picture is not None and (image_key is not None or "." not in picture)
        return members[picture] if picture is not None and is_final else None

    def content(self, member: Member) -> bytes | None:
        """The bytes of a member, as far as the window has them all."""
        first = member.content - self.begin
        data = self.data[first : first + member.size]
        return data if len(data) == member.size else None


class NotInOrder(Exception):
    """The keys of a tar do not tell where its samples lie."""


class TarSeek:
    """Looks for samples of one tar of `size` bytes; `read` reads its bytes from one to another."""

    def __init__(self, size: int, read: Read, image_key: str | None = None) -> None:
        self._size, self._read, self._image_key = size, read, image_key
        self._lock = threading.Lock()
        self._first: Window | None = None
        self._last: Window | None = None

    def find(self, key: str) -> tuple[Member, bytes | None]:
        """The picture of a sample, and its bytes where they were read along the way.

        Raises `NotInOrder` where it is not found, which says nothing about whether it is there.
        """
        first, last = self._ends()
        for window in (first, last):
            if key in window.keys:
                return self._in(window, key)
        order = _Order(first.keys[0], last.keys[-1], key)
        low, high = first.place(-1), last.place(0)
        before = 2 * (high.begin - low.begin)
        for _ in range(_MOST_READS):
            if not order.ascend([low.key, key, high.key]):
                break
            # Where numbers leap, a half comes nearer than a share.
            span = high.begin - low.begin
            share = order.share(low.key, key, high.key) if 2 * span <= before else 0.5
            before = span
            guess = low.begin + int(share * span) - _WINDOW // 2
            begin = max(min(guess, high.begin - _WINDOW), low.begin)
            window = self._window(begin - begin % BLOCK)
            if window.keys[-1] == low.key:  # one sample takes all of the window
                window = self._window(begin - begin % BLOCK, _WIDE)
            if not order.ascend(window.keys):
                break
            if key in window.keys:
                return self._in(window, key)
            if order.ascend([key, window.keys[0]]):
                high = window.place(0)
            else:
                low = window.place(-1)
        raise NotInOrder

    def _ends(self) -> tuple[Window, Window]:
        with self._lock:
            if self._first is None or self._last is None:
                self._first = self._window(0)
                begin = max(0, self._size - _WINDOW)
                self._last = self._window(begin - begin % BLOCK)
            return self._first, self._last

    def _window(self, begin: int, least: int = _WINDOW) -> Window:
        """The first window from a place on that shows a sample; a wider one where it must be."""
        for size in sorted({least, _WIDE}):
            start = begin if begin + size <= self._size else max(0, self._size - size)
            start -= start % BLOCK
            window = Window(start, self._read(start, min(start + size, self._size)))
            if window.keys:
                return window
        raise NotInOrder

    def _in(self, window: Window, key: str) -> tuple[Member, bytes | None]:
        """An image whose sample the window shows; more is read where it may begin before."""
        for more in (0, _WINDOW, _WIDE):
            if more:
                begin = max(0, window.begin - more)
                begin -= begin % BLOCK
                end = min(window.begin + _WINDOW + more, self._size)
                window = Window(begin, self._read(begin, end))
            image = window.image(key, self._image_key)
            if image is not None and (window.begin == 0 or key != window.keys[0]):
                return image, window.content(image)
        raise NotInOrder


class _Order:
    """The order of a tar's keys: by number where they are numbers, else by their bytes."""

    def __init__(self, *keys: str) -> None:
        self._are_numbers = all(key.isascii() and key.isdigit() for key in keys)
        first, last = keys[0].encode("utf-8", "replace"), keys[1].encode("utf-8", "replace")
        pairs = zip(first, last, strict=False)
        self._prefix = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    def ascend(self, keys: list[str]) -> bool:
        """Whether keys, none of which is the next one, ascend."""
        if self._are_numbers:
            if not all(key.isascii() and key.isdigit() for key in keys):
                return False
            return all(int(a) < int(b) for a, b in itertools.pairwise(keys))
        return all(a < b for a, b in itertools.pairwise(keys))

    def share(self, low: str, key: str, high: str) -> float:
        """Return the place of a key between two others, from 0 to 1."""
        a, value, b = self._number(low), self._number(key), self._number(high)
        return min(max((value - a) / (b - a), 0.0), 1.0) if b > a else 0.5

    def _number(self, key: str) -> int:
        if self._are_numbers:
            return int(key)
        rest = key.encode("utf-8", "replace")[self._prefix : self._prefix + 8]
        return int.from_bytes(rest.ljust(8, b"\0"), "big")


def _members(begin: int, data: bytes) -> list[Member]:
    """The members whose headers follow one another in bytes of a tar, from the first one on."""
    members: list[Member] = []
    at = _next_header(data, 0)
    while at is not None and at + BLOCK <= len(data):
        header = ordinary_header(data[at : at + BLOCK])
        if header is None:
            if not data[at : at + BLOCK].strip(b"\0"):
                break  # the end of the archive
            if members:
                return []  # a long name, or none: these headers are for a walk
            at = _next_header(data, at + BLOCK)
            continue
        name, size = header
        place = sample_member(name)
        key, ending = place if place is not None else ("", "")
        content = begin + at + BLOCK
        members.append(Member(key, ending, begin + at, content, size))
        at += BLOCK + size + -size % BLOCK
    return members


def _next_header(data: bytes, at: int) -> int | None:
    """The next block from `at` on that may be a header."""
    found = data.find(_MAGIC, at + _MAGIC_AT)
    while found >= 0 and (found - _MAGIC_AT) % BLOCK:
        found = data.find(_MAGIC, found + 1)
    return found - _MAGIC_AT if found >= 0 else None
