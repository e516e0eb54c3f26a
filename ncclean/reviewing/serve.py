"""Run the server of a review until the person has finished, then write the decisions."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from upath import UPath

from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.file_names import WORKING_FOLDER
from ncclean.reviewing.decided import Decided
from ncclean.reviewing.pictures import Pictures
from ncclean.reviewing.proposals import Proposals
from ncclean.reviewing.server import Server
from ncclean.reviewing.table import ReviewTable
from ncclean.selection.decided import Decisions
from ncclean.storage.same_corpus import as_scored

HOST = "127.0.0.1"
_INDEXES = "images"  # of tars, in the working folder


@dataclass(frozen=True)
class Reviewed:
    """The number of decided pairs, by decision, and the file that has them."""

    decided: int
    by_decision: dict[str, int]
    out: str


class _Server(uvicorn.Server):
    """A server that ends on a signal without passing it on: decisions are written after it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    scores: Sequence[str],
    out: UPath,
    *,
    shards: Sequence[ShardRef] | None = None,
    embeddings: Sequence[ShardRef] | None = None,
    embedding_keys: tuple[str, str] | None = None,
    decisions: Sequence[str] = (),
    join: Sequence[str] = (),
    where: str | None = None,
    reviewer: str | None = None,
    port: int = 0,
    memory_limit: str | None = None,
    replaces: bool = False,
    announce: Callable[[str], None] = print,
) -> Reviewed:
    """Serve the page of a review; returns when it is finished, or interrupted.

    `decisions` are files of earlier ones. `embeddings` propose captions; `embedding_keys` name
    their vectors. `replaces` lets `out` be no decisions. `announce` is called with the URL,
    once the server listens. Raises `InputError` for a port that is taken, for what cannot be
    read, and if another review writes to `out`.
    """
    if shards is not None:
        shards = as_scored(scores, shards)
    with contextlib.ExitStack() as stack:
        table = ReviewTable.open(scores, join, where, memory_limit)
        stack.callback(table.close)
        earlier = list(Decisions.read(decisions).by_pair.values())
        decided = Decided(table.connection, table.lock, out, reviewer, earlier, replaces)
        folder = Path(str(out.parent)) / WORKING_FOLDER
        pictures = Pictures(shards, folder / _INDEXES)
        proposals = None
        if embeddings is not None:
            proposals = Proposals(embeddings, embedding_keys, folder)
            stack.callback(proposals.stop)
        listener = stack.enter_context(_listening(port))

        def done() -> None:
            running.should_exit = True

        server = Server(table, decided, pictures, scores[0].rsplit("/", 1)[-1], done, proposals)
        config = uvicorn.Config(
            server.app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        running = _Server(config)
        announce(f"http://{HOST}:{listener.getsockname()[1]}/{server.token}/")
        running.run(sockets=[listener])
        counts = decided.counts()
        return Reviewed(decided.save(), counts, str(out))


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """A socket of this machine alone; port 0 takes one that is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise InputError(
                f"--port {port}: {error.strerror or error}; leave it out to take a free one"
            ) from error
        listener.listen(64)
        yield listener
