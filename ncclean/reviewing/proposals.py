"""Captions of other pairs that fit an image, as proposals for one whose caption is wrong."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclean.base import stores
from ncclean.data.shards import ShardRef
from ncclean.errors import NccleanError
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.caption_index import CaptionIndex, caption_digest
from ncclean.storage.array_files import ArrayFolder

_PROPOSED = 5
_HEAD_START = 2.0  # seconds, for the first view
_LAST_TASK = 10.0  # seconds in which a review that ends waits for it


class _Stopped(Exception):
    """The review ends while captions are indexed."""


class Proposals:
    """The captions closest to an image by its embedding, from an index made beside the review.

    The index is made by a thread once, kept in `folder`, and continued where a review ended.
    """

    def __init__(
        self, shards: Sequence[ShardRef], keys: tuple[str, str] | None, folder: Path
    ) -> None:
        """Raises `InputError` for embeddings whose vectors cannot be told or read."""
        self._blocks = embedded_blocks(shards, keys)
        identity = [
            [block.keys, block.dim, [shard.to_json() for shard in block.shards]]
            for block in self._blocks
        ]
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        self._work = ArrayFolder(stores.absolute(str(folder / f"captions-{digest}")))
        self._index: CaptionIndex | None = None
        self._error: str | None = None
        self._position = "the captions are about to be indexed"
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Make the index, unless that has begun."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._build, name="ncclean-captions", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """End the thread after what it is at; the next review goes on from there."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_LAST_TASK)

    def of(self, uid: str, own: str) -> dict[str, Any]:
        """The `captions` closest to an image, or a `reason` why there are none, or none yet.

        Its own captions are left out, and `own`, that of the table.
        """
        self.start()
        index = self._index
        if index is None:
            return {"isWaiting": self._error is None, "reason": self._error or self._position}
        try:
            rows = index.rows_of(uid)
            if not rows:
                return {"reason": "the embeddings do not have this image"}
            image = index.image(rows[0])
            without = {caption_digest(own), *(row.caption for row in rows)}
            with self._lock:
                near = index.nearest(image, _PROPOSED, without)
        except (NccleanError, OSError) as error:
            return {"reason": f"the embeddings cannot be read: {error}"}
        return {"captions": [[one.text, round(one.similarity, 4)] for one in near]}

    def say(self, text: str) -> None:
        self._check()
        self._position = text

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None:
        self._check()
        text = self._position.partition(",")[0]
        self._position = f"{text}, {done:,} of {total:,} blocks"

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _Stopped

    def _build(self) -> None:
        if self._stopped.wait(_HEAD_START):
            return
        try:
            self._index = CaptionIndex.build(self._blocks, self._work, self)
        except _Stopped:
            return
        except (NccleanError, OSError) as error:
            self._error = f"the captions cannot be indexed: {error}"
