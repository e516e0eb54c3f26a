"""The protocol that runs a command's tasks: in this process, in several, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Tasks = Iterable[tuple[int, tuple[Any, ...]]]  # a number, and the function's arguments


class Runner(Protocol):
    """Calls functions that may be called again after any failure."""

    @property
    def is_remote(self) -> bool:
        """Whether they run on other machines, which do not see this one's temporary files."""
        ...

    @property
    def workers(self) -> int:
        """The number of tasks that run at a time."""
        ...

    def map(self, function: Callable[..., T], tasks: Tasks) -> Iterator[tuple[int, T]]:
        """Yield results with their task's number, as they arrive; few tasks exist at a time."""
        ...

    def everywhere(self, function: Callable[[], None]) -> None:
        """Call `function` on each machine that tasks run on."""
        ...


class InProcess:
    """Calls functions in this process."""

    is_remote = False
    workers = 1

    def map(self, function: Callable[..., T], tasks: Tasks) -> Iterator[tuple[int, T]]:
        """Results with the number of their task, in order."""
        for number, arguments in tasks:
            yield number, function(*arguments)

    def everywhere(self, function: Callable[[], None]) -> None:
        """Call it here."""
        function()
