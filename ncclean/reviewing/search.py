"""Search by words and likeness for a page: a process searches, and only its askers wait."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import pickle
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclean.base.formats import counted
from ncclean.base.isolated import isolated
from ncclean.data.embeddings.pairs import embedding_dim
from ncclean.data.embeddings.units import vector_keys
from ncclean.data.fingerprints import Fingerprints
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.reviewing.conditions import Matches
from ncclean.storage.tables import fingerprints

if TYPE_CHECKING:
    from ncclean.reviewing.table import ReviewTable

logger = logging.getLogger(__name__)
IMAGE, CAPTION = "image", "caption"
_PROCESS = "ncclean.reviewing.vector_search"  # it imports torch
_DIED = "the search has ended, for lack of memory perhaps: ask again"
_KEPT = 4  # rankings
_PROBLEMS = {
    "unread": "embeddings that cannot be read (%s, first %s): their pairs come last in searches",
    "changed": "the embeddings are not of what was scored: %s changed in between (first: %s)",
}
_LONGEST_ANSWER = 1 << 20  # bytes
PROPOSED = 5
CANDIDATES = 50, 2000  # captions, many of which may be equal


@dataclass(frozen=True)
class Task:
    """Embeddings to search, with the score files whose rows they belong to.

    `dim` is the vectors' width, `number` is SQL for the number of a row's caption, `folder` is for
    vectors that cannot be mapped in place. `model` is that of the embeddings, None if unknown, and
    `pretrained` its weights, as named in a score table.
    """

    shards: tuple[ShardRef, ...]
    keys: tuple[str, str] | None
    dim: int
    files: tuple[str, ...]
    number: str
    memory_limit: str | None
    folder: str
    model: str | None
    pretrained: str | None
    scored: Fingerprints  # of the shards

    @classmethod
    def of(
        cls,
        shards: Sequence[ShardRef],
        keys: tuple[str, str] | None,
        table: ReviewTable,
        memory_limit: str | None,
        model: str | None,
        pretrained: str | None,
    ) -> Task:
        """Describe the embeddings of a review table to search.

        Raises `InputError` for embeddings whose vectors cannot be identified or read.
        """
        keys = vector_keys(shards, keys)
        try:
            dim = embedding_dim(shards, keys)
        except ShardError as error:
            raise InputError(str(error)) from error
        return cls(
            tuple(shards), keys, dim, table.files, table.number, memory_limit, str(table.work),
            model, pretrained, fingerprints(table.scored),
        )  # fmt: skip


class Search:
    """Sends queries to a search process: started with the first query, and again if it has died."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._rankings: OrderedDict[tuple[str, str, int | None], Matches] = OrderedDict()
        self._has_ended = False

    async def ranking(self, side: str, words: str, place: int | None) -> Matches:
        """Rank all pairs by their cosine with words, or with the image of the row at a place.

        The `side` of the pairs is their image or their caption. Raises `InputError` for a pair
        without embeddings, or if no model can be loaded.
        """
        asked = side, words, place
        if asked not in self._rankings:
            out = Path(self._task.folder) / f"ranking_{uuid.uuid4().hex}.parquet"
            ranking = Matches(out)
            await self._ask(side=side, words=words, place=place, out=str(out))
            self._rankings[asked] = ranking
        self._rankings.move_to_end(asked)
        while len(self._rankings) > _KEPT:
            self._rankings.popitem(last=False)
        return self._rankings[asked]

    async def nearest_captions(self, place: int, count: int) -> dict[int, float]:
        """Return the captions nearest to a row's image: places with cosines, nearest first."""
        answer = await self._ask(side=CAPTION, place=place, nearest=count)
        return dict(zip(answer["places"], answer["cosines"], strict=True))

    async def stop(self) -> None:
        """End the search process; pending queries raise `InputError`."""
        self._has_ended = True
        if self._process is not None:
            with contextlib.suppress(OSError):  # it could not be started
                process = await self._process
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                await self._reading

    async def _ask(self, **query: Any) -> dict[str, Any]:
        if self._has_ended:
            raise InputError("the review has ended")
        if self._process is None:
            self._process = asyncio.ensure_future(self._start())
        process = await asyncio.shield(self._process)
        if process.returncode is not None:
            raise InputError(_DIED)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"id": number, **query}).encode() + b"\n")
        try:
            fields: dict[str, Any] = await answer
        finally:
            self._waiting.pop(number, None)
        if "error" in fields:
            raise InputError(fields["error"])
        return fields

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *isolated(_PROCESS),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
            limit=_LONGEST_ANSWER,
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(self._task))
        self._reading = asyncio.ensure_future(self._read(process))
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            fields = json.loads(line)
            for problem, text in _PROBLEMS.items():
                count, *first = fields.get(problem, [0])
                if count:
                    logger.warning(text, counted(count, "shard"), *first)
            answer = self._waiting.get(fields.pop("id"))
            if answer is not None and not answer.done():
                answer.set_result(fields)
        await process.wait()
        self._process = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(InputError(_DIED))


def proposed(
    rows: Iterable[Mapping[str, Any]], cosines: Mapping[int, float], own: Mapping[str, Any]
) -> list[tuple[str, float]]:
    """Return captions to propose for a row: the first few of others, each once, with cosines.

    `rows` are in the order of preference, `cosines` by their places, and `own` is the row.
    """
    excluded, captions = {_folded(own["text"])}, []
    for row in rows:
        text = row["text"]
        if isinstance(text, str) and row["uid"] != own["uid"] and _folded(text) not in excluded:
            excluded.add(_folded(text))
            captions.append((text, round(cosines[row["place"]], 4)))
    return captions[:PROPOSED]


def _folded(text: object) -> str:
    return " ".join(str(text).casefold().split())
