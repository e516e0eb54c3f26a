"""The protocol of progress: the library reports to it, whoever watches."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Receives what is being done and how far it is."""

    def say(self, text: str) -> None:
        """Something begins, or is worth a line."""

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        """`done` of `total` units are done; a `total` of 0 is unknown."""


class Silent:
    """Reports nothing."""

    def say(self, text: str) -> None: ...
    def advance(self, done: int, total: int, unit: str, **facts: object) -> None: ...


SILENT = Silent()


def counted(number: int, noun: str) -> str:
    """`1 shard`, `1,200 shards`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def file_size(size: float) -> str:
    """`12.3 MB`."""
    return f"{size / 1e6:,.1f} MB"
