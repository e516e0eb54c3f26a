"""Read and decode shards in worker processes, as many as there are decoders.

Images of the first shards come first, so that a model slower than its decoders gets shard after
shard; a faster one gets blocks of several shards as they arrive.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from multiprocessing.connection import wait
from typing import Any

import torch

from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError
from ncclean.execution import shard_reader
from ncclean.execution.shard_reader import Block, ReaderSettings, ReadShard, ShardRows
from ncclean.models.devices import pin, unpin
from ncclean.workers.arena import Arena
from ncclean.workers.fork_server import SERVER
from ncclean.workers.worker import Logged, Worker, WorkerDied

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_BLOCK_IMAGES = 64  # at most
_MOST_READERS = 4
_BLOCKS_PER_READER = 2
_SILENT_SECONDS = 900.0  # for a reader that waits only for its source, such as a dead disk
_CHANCES = 5  # of a shard whose readers the system kills


@dataclass
class Images:
    """(n, 3, H, W) uint8 images of a shard, in shared memory that `ShardFeed.release` frees."""

    block: Block
    pixels: torch.Tensor

    def __len__(self) -> int:
        """Return the number of images, including those still encoded."""
        return len(self.block.rows) + len(self.block.encoded)


class _Again(Enum):
    """A shard is reread from its beginning; what has been read of it does not count."""

    AGAIN = "again"


AGAIN = _Again.AGAIN
# Images of a shard, or all its other data, or why it cannot be read; with its number.
Parts = Generator[tuple[int, Images | ShardRows | Exception | _Again], None, None]


class _Reader:
    """A worker, the shard that it reads, and how many blocks it may fill."""

    def __init__(self, settings: ReaderSettings, arena: Arena) -> None:
        self.worker = Worker(shard_reader.__name__, [arena.descriptor])
        self.worker.send(settings)
        self.number: int | None = None
        self.asked: ReadShard | None = None
        self.said = self.failures = 0  # of the shard
        self.heard = 0.0
        self.filling: set[int] = set()  # blocks that it may fill

    def read(self, number: int, asked: ReadShard) -> None:
        """Begin reading a shard."""
        self.number, self.asked, self.said = number, asked, 0
        if not asked.carefully:
            self.failures = 0
        self.worker.send(asked)

    @property
    def is_careful(self) -> bool:
        """Check whether it reads a shard that killed another reader."""
        return self.asked is not None and self.asked.carefully

    def fill(self, block: int) -> None:
        """Allow it to fill a block."""
        self.heard = time.monotonic()
        self.filling.add(block)
        self.worker.send(block)


class ShardFeed:
    """Reads and decodes shards in worker processes, which have `decoders` threads in total."""

    def __init__(
        self, settings: ReaderSettings, decoders: int, batch_size: int, device: torch.device = _CPU
    ) -> None:
        """Set up the feed; `device` is where images go, uploaded directly if it is a GPU."""
        self._settings, self._decoders, self._batch = settings, decoders, batch_size
        self._device = device
        self._waited = 0.0

    def read(self, shards: Sequence[ShardRef]) -> Parts:
        """Yield the images of each shard, then its rows or why there are none, with its number.

        The images must be freed with `release`.
        """
        readers = min(len(shards), self._decoders, _MOST_READERS)
        if not readers:
            return
        of_batch = -(-self._batch // _BLOCK_IMAGES)
        blocks = (readers + 2) * of_batch + _BLOCKS_PER_READER * readers
        shape = (-(-self._batch // of_batch), 3, *self._settings.preprocessing.size)
        threads = -(-self._decoders // readers)
        self._started = replace(self._settings, arena=(blocks, shape), threads=threads)
        self._arena = Arena(blocks, shape)
        self._free = list(range(blocks))
        with contextlib.ExitStack() as stack:
            stack.callback(self._arena.close)
            if self._device.type == "cuda" and pin(self._arena.blocks):
                stack.callback(unpin, self._arena.blocks)
            # Otherwise each reader would import them itself.
            tokenize = self._settings.tokenize
            tokenizer = [type(tokenize.tokenizer).__module__] if tokenize is not None else []
            SERVER.imports(shard_reader.__name__, *tokenizer)
            self._readers = [_Reader(self._started, self._arena) for _ in range(readers)]
            stack.callback(self._close)
            yield from self._read(deque(enumerate(shards)))

    def _read(self, waiting: deque[tuple[int, ShardRef]]) -> Parts:
        while True:
            for reader in self._readers:
                if reader.number is None and waiting:
                    number, shard = waiting.popleft()
                    reader.read(number, ReadShard(shard))
            busy = [reader for reader in self._readers if reader.number is not None]
            if not busy:
                return
            busy.sort(key=lambda reader: reader.number or 0)
            self._grant()
            start = time.perf_counter()
            ready = wait([reader.worker.connection for reader in busy], _SILENT_SECONDS / 10)
            self._waited += time.perf_counter() - start
            if not ready:
                for reader in busy:
                    if reader.filling and time.monotonic() - reader.heard > _SILENT_SECONDS:
                        reader.worker.end()  # noticed in the next round
                continue
            reader = next(one for one in busy if one.worker.connection in ready)
            reader.heard = time.monotonic()
            yield from self._next(reader)

    def _next(self, reader: _Reader) -> Parts:
        number = reader.number
        assert number is not None
        message: Any
        try:
            message = reader.worker.receive()
        except WorkerDied as died:
            message = died
        if isinstance(message, WorkerDied) or (
            isinstance(message, Exception) and not reader.is_careful
        ):
            yield number, AGAIN
            message = self._replace(reader, message)
            if message is None:
                return
        if isinstance(message, int):
            reader.said = message
        elif isinstance(message, Logged):
            message.log()
        elif isinstance(message, Block):
            reader.filling.remove(message.number)
            yield number, Images(message, self._arena.blocks[message.number][: len(message.rows)])
        else:
            reader.number = None
            yield number, message

    def _replace(self, reader: _Reader, error: Exception) -> ShardError | None:
        """Replace a failed reader by another, which continues its shard carefully.

        If it dies as well, the next one stops before the fatal sample; a reader killed by the
        system may have been innocent, and gets another chance. Returns an error if that does not
        help either.
        """
        how = str(error) if isinstance(error, WorkerDied) else f"failed: {error!r}"
        assert reader.asked is not None
        assert reader.number is not None
        reader.worker.close()
        other = _Reader(self._started, self._arena)
        self._free += reader.filling
        self._readers[self._readers.index(reader)] = other
        asked = replace(reader.asked, carefully=True)
        reader.failures += 1
        is_innocent = isinstance(error, WorkerDied) and error.is_innocent
        other.failures = reader.failures
        if reader.asked.carefully and not (is_innocent and reader.failures < _CHANCES):
            why = f"cannot be read on: its reader {how}"
            if reader.said == reader.asked.most:
                return ShardError(why)
            asked = replace(asked, most=reader.said, why=why)
        logger.warning("%s: its reader %s; it is read again", reader.asked.shard.name, how)
        other.read(reader.number, asked)
        return None

    def times_since_last(self, of_reader: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds spent waiting for readers since the last call.

        They are divided as the shard's reader itself waited: for the store, and for decoders.
        """
        waited, self._waited = self._waited, 0.0
        whole = sum(of_reader.values()) or 1.0
        return {phase: waited * seconds / whole for phase, seconds in of_reader.items()}

    def release(self, images: Images) -> None:
        """Free the shared memory of images that are no longer needed."""
        self._free.append(images.block.number)
        self._grant()

    def _grant(self) -> None:
        """Let readers fill the free blocks, those of the first shards first."""
        for reader in sorted(self._readers, key=lambda one: one.number or 0):
            while (
                self._free
                and reader.number is not None
                and len(reader.filling) < _BLOCKS_PER_READER
            ):
                reader.fill(self._free.pop())

    def _close(self) -> None:
        for reader in self._readers:
            reader.worker.close()
