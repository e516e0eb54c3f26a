"""Where a stage reports how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Where a run reports how far it is."""

    def start(self, shards: int, samples: int) -> None:
        """`shards` are to be done, with about `samples` samples."""

    def samples(self, done: int) -> None:
        """So many samples are done in this run."""

    def shard(self, name: str, rows: int, error: str | None) -> None:
        """A shard is committed, or has failed for the given reason."""

    def stage(self, text: str) -> None:
        """Another stage begins."""

    def finish(self) -> None:
        """No more reports follow."""


class NoProgress:
    """Tells nobody."""

    def start(self, shards: int, samples: int) -> None: ...
    def samples(self, done: int) -> None: ...
    def shard(self, name: str, rows: int, error: str | None) -> None: ...
    def stage(self, text: str) -> None: ...
    def finish(self) -> None: ...
