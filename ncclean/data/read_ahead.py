"""Iterate ahead of the reader, in a thread, by a bounded number of items."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.5
_JOIN_SECONDS = 10.0


class ReadAhead(Generic[T]):
    """Reads the items of an iterator ahead, in a thread, within a `with` block.

    `items` receives an event that is set when reading stops. An error of the iterator is raised
    where its next item would come.
    """

    def __init__(self, items: Callable[[threading.Event], Iterator[T]], ahead: int) -> None:
        self._items = items
        self._queue: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Iterator[T]:
        self._thread.start()
        return self._received()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._thread.join(_JOIN_SECONDS)

    def _received(self) -> Iterator[T]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]

    def _read(self) -> None:
        try:
            for item in self._items(self._stop):
                self._put((item,))
            self._put(None)
        except BaseException as error:  # must reach the reader, who would otherwise wait forever
            self._put(error)

    def _put(self, item: tuple[T] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                continue
