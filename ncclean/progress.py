"""The protocol of progress: the library reports to it, whoever watches."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Receives what is being done and how far it is."""

    def say(self, text: str) -> None:
        """Report that something begins, or another line of text."""

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        """Report that `done` of `total` units are done; 0 stands for an unknown total."""


class Silent:
    """Reports nothing."""

    def say(self, text: str) -> None: ...
    def advance(self, done: int, total: int, unit: str, **facts: object) -> None: ...


SILENT = Silent()


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 shard`, `1,200 shards`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def file_size(size: float) -> str:
    """A size in bytes as text, such as `12.3 MB` or `9.6 kB`."""
    return f"{size / 1e6:,.1f} MB" if size == 0 or size >= 1e5 else f"{size / 1e3:,.1f} kB"
