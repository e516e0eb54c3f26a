"""Run the server of a review until the person has finished, then write the decisions."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from upath import UPath
from uvicorn.protocols.http.h11_impl import H11Protocol

from ncclean.base.progress import SILENT, Progress
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.reviewing.decided import Decided
from ncclean.reviewing.pictures import Pictures
from ncclean.reviewing.search import Search, Task
from ncclean.reviewing.server import Server
from ncclean.reviewing.table import ReviewTable
from ncclean.selection.decided import Decisions
from ncclean.storage.run_facts import read_facts
from ncclean.storage.same_corpus import as_scored
from ncclean.storage.tables import fingerprints

HOST = "127.0.0.1"
_MOST_CONNECTIONS = 16  # a browser opens six
_ACCEPTED_AT_ONCE = 4  # before any of them can be closed
_WAITING = 64


@dataclass(frozen=True)
class Reviewed:
    """The result of a review: the number of decided pairs, also by decision, and their file."""

    decided: int
    by_decision: dict[str, int]
    out: str


class _Connection(H11Protocol):
    """A connection to the page; beyond the limit, the one idle longest is closed.

    Otherwise idle connections would use up all files that the process may open.
    """

    _last_used = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._last_used = self.loop.time()
        others = [one for one in self.connections if isinstance(one, _Connection)]
        open_ones = [one for one in others if not one.transport.is_closing()]
        idle = [one for one in open_ones if one.cycle is None or one.cycle.response_complete]
        if len(open_ones) > _MOST_CONNECTIONS:
            min(idle, key=lambda one: one._last_used).transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._last_used = self.loop.time()


class _Server(uvicorn.Server):
    """A server that ends on a signal without passing it on: decisions are written afterwards."""

    def __init__(
        self, config: uvicorn.Config, table: ReviewTable, search: Search | None = None
    ) -> None:
        super().__init__(config)
        self._table, self._search = table, search

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():  # more may wait than are accepted at once
            listener.listen(_WAITING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._table.stop()
        if self._search is not None:
            await self._search.stop()
        await super().shutdown(sockets)

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
    model: str | None = None,
    pretrained: str | None = None,
    decisions: Sequence[str] = (),
    join: Sequence[str] = (),
    where: str | None = None,
    reviewer: str | None = None,
    port: int = 0,
    memory_limit: str | None = None,
    replaces: bool = False,
    announce: Callable[[str], None] = print,
    progress: Progress = SILENT,
) -> Reviewed:
    """Serve the web page of a review; return when it is finished or interrupted.

    `decisions` are files of earlier ones. `embeddings` are searched; `embedding_keys` name their
    vectors, `model` and `pretrained` are their model, by default the scoring one. `replaces` allows
    `out` to be another file. `announce` is called with the URL once the server listens; `progress`
    receives how images are found. Raises `InputError` for a taken port, for unreadable inputs, and
    if another review writes to `out`.
    """
    if shards is not None:
        shards = as_scored(scores, shards, progress.say)
    with contextlib.ExitStack() as stack:
        table = ReviewTable.open(scores, join, where, memory_limit)
        stack.callback(table.close)
        scored = fingerprints(scores)
        earlier = list(Decisions.read(decisions, has_notes=True, scored=scored).by_pair.values())
        decided = Decided(table.connection, out, reviewer, earlier, replaces, scored)
        pictures = Pictures(shards, table.place_of, progress.say)
        if shards is not None and (missing := pictures.check(table.shards())) is not None:
            progress.say(missing)
        search = None
        if embeddings is not None:
            if model is None:
                facts = read_facts(scores)
                model, pretrained = facts.model, facts.pretrained
            search = Search(
                Task.of(embeddings, embedding_keys, table, memory_limit, model, pretrained)
            )
        listener = stack.enter_context(_listening(port))

        def done() -> None:
            running.should_exit = True

        server = Server(table, decided, pictures, scores[0].rsplit("/", 1)[-1], done, search)
        config = uvicorn.Config(
            server.app,
            http=_Connection,
            ws="none",
            backlog=_ACCEPTED_AT_ONCE,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        running = _Server(config, table, search)
        announce(f"http://{HOST}:{listener.getsockname()[1]}/{server.token}/")
        running.run(sockets=[listener])
        counts = decided.counts()
        return Reviewed(decided.save(), counts, str(out))


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """Return a socket reachable only from this machine; port 0 takes a free one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise InputError(
                f"--port {port}: {error.strerror or error}; leave it out to take a free one"
            ) from error
        listener.listen(_WAITING)
        yield listener
