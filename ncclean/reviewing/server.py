"""Serve a review to one person's browser: a page, its rows and images, and decisions.

It listens only on this machine. Every path begins with a random token; a request with another Host
than this machine's, or from a page of another origin, is refused, whatever it knows.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ncclean.errors import InputError
from ncclean.report.page import asset, content_policy, render_page
from ncclean.reviewing.cards import card_of, mended_caption
from ncclean.reviewing.conditions import Matches
from ncclean.reviewing.dates import Dates
from ncclean.reviewing.decided import Decided
from ncclean.reviewing.pictures import NoPicture, Pictures
from ncclean.reviewing.search import CANDIDATES, CAPTION, IMAGE, PROPOSED, Search, proposed
from ncclean.reviewing.table import DATE, Request, ReviewTable
from ncclean.storage.decisions import CORRECT, KINDS, NOTE

_HOSTS = ("127.0.0.1", "localhost", "::1")
_PAGE_ROWS = 200
_LARGEST_BODY = 4 << 20
_SECONDS_TO_SEND = 10.0
_LONGEST_CAPTION = 100_000
_LONGEST_WORDS = _LONGEST_NOTE = 1_000
_PICTURE_THREADS = 8
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Server:
    """The web application of one review; `done` is called when the person has finished."""

    def __init__(
        self,
        table: ReviewTable,
        decided: Decided,
        pictures: Pictures,
        title: str,
        done: Callable[[], None],
        search: Search | None = None,
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self._table, self._decided, self._pictures = table, decided, pictures
        self._title, self._done, self._search = title, done, search
        self._dates = Dates(table, pictures)
        self._page_of_last = ""
        self._pool = ThreadPoolExecutor(_PICTURE_THREADS, "ncclean-pictures")
        inside = {
            "GET": {
                "": self._page,
                "views": self._views,
                "rows": self._rows,
                "histogram": self._histogram,
                "picture": self._picture,
            },
            "POST": {
                "decide": self._decide,
                "decide-all": self._decide_all,
                "note": self._note,
                "undo": self._undo,
                "redo": self._redo,
                "proposals": self._proposed,
                "done": self._finish,
            },
        }
        self.app = Starlette(
            routes=[
                Route(f"/{{token}}/{name}", self._guarded(handler), methods=[method])
                for method, handlers in inside.items()
                for name, handler in handlers.items()
            ],
            exception_handlers={404: _no_page},
        )

    def _guarded(
        self, handler: Callable[[HttpRequest], Awaitable[Response]]
    ) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def guarded(request: HttpRequest) -> Response:
            token = request.path_params["token"].encode()
            if not secrets.compare_digest(token, self.token.encode()):
                return _no_page()
            if not is_own(request):
                return PlainTextResponse("not from here", 403)
            try:
                response = await handler(request)
            except InputError as error:
                response = JSONResponse({"error": str(error)}, 400)
            except asyncio.TimeoutError:
                response = JSONResponse({"error": "the request does not end"}, 408)
            except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
                response = JSONResponse({"error": "a request that the page does not make"}, 400)
            response.headers.update(_HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return guarded

    async def _page(self, request: HttpRequest) -> Response:
        style, script = asset("review.css"), asset("review.js")
        data = {
            "views": [[view.name, view.title, view.score] for view in self._table.views.values()],
            "scores": self._table.scores,
            "searches": self._search is not None,
            "page": secrets.token_urlsafe(6),
        }
        html = render_page("review", f"Review of {self._title}", style, script, data)
        policy = content_policy(style, script, images="'self' data:")
        policy += "; connect-src 'self'; frame-ancestors 'none'"
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    async def _views(self, request: HttpRequest) -> Response:
        return JSONResponse(await run_in_threadpool(self._table.counts))

    async def _histogram(self, request: HttpRequest) -> Response:
        wanted = _wanted(request.query_params)
        matches = await self._matches(request, wanted)
        return JSONResponse(await run_in_threadpool(self._table.histogram, wanted, matches))

    async def _rows(self, request: HttpRequest) -> Response:
        query = request.query_params
        wanted, is_anew = _wanted(query), query.get("anew") == "1"
        start, count = int(query.get("start", "0")), int(query.get("count", "0"))
        count = min(max(count, 0), _PAGE_ROWS)
        matches = await self._matches(request, wanted)
        ranking = await self._ranking(request, wanted, matches, is_anew)

        def read() -> dict[str, Any]:
            view = self._table.view(wanted, matches, is_anew, ranking)
            start_ = min(max(start, 0), view.pairs)
            rows = self._table.page(view, start_, count)
            pairs = [(row["uid"], row["caption_number"]) for row in rows]
            decided = self._decided.of_pairs(pairs) if pairs else {}
            cards = [
                {
                    **card_of(row),
                    "place": str(row["place"]),
                    "date": self._dates.of_row(row["place"]) if wanted.sort == DATE else None,
                    "decision": decided.get(pair),
                }
                for row, pair in zip(rows, pairs, strict=True)
            ]
            self._pictures.expect(rows)
            return {"pairs": view.pairs, "start": start_, "cards": cards, **self._state()}

        return JSONResponse(await run_in_threadpool(read))

    async def _matches(self, request: HttpRequest, wanted: Request) -> Matches | None:
        """Return the pairs of the request's condition; abandon it if the reader leaves."""
        condition = self._table.condition(wanted)
        if not condition:
            return None
        return await _unless_left(request, self._table.conditions.matches(condition))

    async def _ranking(
        self, request: HttpRequest, wanted: Request, matches: Matches | None, is_anew: bool = False
    ) -> Matches | None:
        """Return cosines with the request's words, or with its image; or dates."""
        if not wanted.meaning and wanted.like is None:
            if wanted.sort != DATE:
                return None
            return await run_in_threadpool(self._dates.ranking, wanted, matches, is_anew)
        ranking = self._searching().ranking(wanted.side, wanted.meaning, wanted.like)
        return await _unless_left(request, ranking)

    def _searching(self) -> Search:
        if self._search is None:
            raise InputError(
                "there are no embeddings to search: `ncclean score --embeddings DIR` writes them, "
                "and `ncclean review --embeddings DIR` reads them"
            )
        return self._search

    async def _picture(self, request: HttpRequest) -> Response:
        shard, key = request.query_params["shard"], request.query_params["key"]
        loop = asyncio.get_running_loop()
        is_large = request.query_params.get("large") == "1"
        read = self._pictures.read_large if is_large else self._pictures.read
        try:
            data = await loop.run_in_executor(self._pool, read, shard, key)
        except (NoPicture, TimeoutError) as reason:
            return JSONResponse({"error": str(reason) or "it takes too long to read"}, 404)
        headers = {"Cache-Control": "private, max-age=3600"}
        return Response(data, media_type="image/webp", headers=headers)

    async def _decide(self, request: HttpRequest) -> Response:
        body = await _body(request)
        kind = body["decision"]
        pairs = [(str(uid), int(number)) for uid, number in body["pairs"]]
        captions = body.get("captions")
        if kind not in KINDS or not pairs:
            raise ValueError(kind)
        if kind == CORRECT:
            captions = [_caption(text) for text in captions or ()]
            if len(captions) != len(pairs):
                raise ValueError("a caption for each pair")
        else:
            captions = None
        await run_in_threadpool(self._decided.decide, pairs, kind, captions)
        return await self._changed(request, len(pairs))

    async def _note(self, request: HttpRequest) -> Response:
        body = await _body(request)
        pairs = [(str(uid), int(number)) for uid, number in body["pairs"]]
        notes = [_text(body["note"], _LONGEST_NOTE)] * len(pairs)
        await run_in_threadpool(self._decided.decide, pairs, NOTE, None, notes)
        return await self._changed(request, len(pairs))

    async def _decide_all(self, request: HttpRequest) -> Response:
        body = await _body(request)
        wanted, kind = _wanted(body["request"]), body["decision"]
        if kind not in KINDS:
            raise ValueError(kind)
        matches = await self._matches(request, wanted)
        ranking = await self._ranking(request, wanted, matches)

        def decide() -> int:
            changed, batch = 0, None
            view = self._table.view(wanted, matches, ranking=ranking)
            for rows in self._table.batches(view):
                captions = [mended_caption(row) for row in rows] if kind == CORRECT else None
                if captions is not None:
                    proposals = [
                        (r, c) for r, c in zip(rows, captions, strict=True) if c is not None
                    ]
                    rows, captions = [r for r, _ in proposals], [c for _, c in proposals]
                pairs = [(row["uid"], row["caption_number"]) for row in rows]
                batch = self._decided.decide(pairs, kind, captions, batch=batch)
                if batch == 0:  # undone from another window
                    return 0
                changed += len(pairs)
            return changed

        return await self._changed(request, await run_in_threadpool(decide))

    async def _undo(self, request: HttpRequest) -> Response:
        await _body(request)

        def undo() -> tuple[int, list[Any]]:
            pairs = self._decided.undo()
            now = self._decided.of_pairs(pairs[:_PAGE_ROWS]) if pairs else {}
            return len(pairs), [[*pair, now.get(pair)] for pair in pairs[:_PAGE_ROWS]]

        changed, undone = await run_in_threadpool(undo)
        return await self._changed(request, changed, undone=undone)

    async def _redo(self, request: HttpRequest) -> Response:
        await _body(request)
        return await self._changed(request, len(await run_in_threadpool(self._decided.redo)))

    async def _proposed(self, request: HttpRequest) -> Response:
        body = await _body(request)
        search, place = self._searching(), int(body["place"])
        captions: list[tuple[str, float]] = []
        for count in CANDIDATES:
            cosines = await search.nearest_captions(place, count)
            [own, *rows] = await run_in_threadpool(self._table.rows_at, [place, *cosines])
            captions = proposed(rows, cosines, own)
            if len(captions) == PROPOSED or len(cosines) < count:
                break
        return JSONResponse({"captions": captions})

    async def _finish(self, request: HttpRequest) -> Response:
        await _body(request)
        self._done()
        return await self._changed(request, 0)

    async def _changed(self, request: HttpRequest, changed: int, **fields: Any) -> Response:
        """Return what a page learns after deciding: `others`, if another page decided before."""
        page = request.query_params.get("page", "")
        others, self._page_of_last = self._page_of_last not in ("", page), page
        state = await run_in_threadpool(self._state)
        return JSONResponse({"changed": changed, "others": others, **fields, **state})

    def _state(self) -> dict[str, Any]:
        decided = self._decided
        return {
            "decided": decided.counts(), "canUndo": decided.can_undo, "canRedo": decided.can_redo
        }  # fmt: skip


def _no_page(*_: object) -> Response:
    return PlainTextResponse("no such page: open the whole address that `ncclean review` said", 404)


def is_own(request: HttpRequest) -> bool:
    """Check that a request is for this machine, at any port, and from the review's page.

    The port may be that of a tunnel. A web name that resolves to this machine is another Host;
    another site's page has another Origin.
    """
    host = request.headers.get("host", "")
    try:
        is_here = urlsplit(f"//{host}").hostname in _HOSTS
    except ValueError:
        return False
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "none")
    is_same = origin is None or origin == f"http://{host}"
    return is_here and is_same and site in ("none", "same-origin")


async def _body(request: HttpRequest) -> dict[str, Any]:
    """Return the JSON of a POST.

    Raises `ValueError` for invalid or oversized requests, `asyncio.TimeoutError` for one that does
    not end.
    """
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        raise ValueError("no JSON")
    data = await asyncio.wait_for(_data(request), _SECONDS_TO_SEND)
    body = json.loads(data)
    if not isinstance(body, dict):
        raise ValueError("no object")
    return body


async def _data(request: HttpRequest) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > _LARGEST_BODY:
            raise ValueError("too much")
    return bytes(data)


async def _unless_left(request: HttpRequest, work: Awaitable[Matches]) -> Matches:
    """Return the awaited result; abandon it if the request's reader leaves."""
    matches = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([matches, left], return_when=asyncio.FIRST_COMPLETED)
        if not matches.done():
            raise InputError("nobody waits for the answer any longer")
        return matches.result()
    finally:
        matches.cancel()
        left.cancel()


async def _left(request: HttpRequest) -> None:
    """Wait until the reader of a request, whose body has been read, closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _wanted(fields: Any) -> Request:
    def number(name: str) -> float | None:
        value = fields.get(name)
        if value in (None, ""):
            return None
        if not math.isfinite(bound := float(value)):
            raise ValueError(f"{name} is not finite")
        return bound

    return Request(
        view=str(fields.get("view", "suspects")),
        score=str(fields["score"]) if fields.get("score") else None,
        low=number("low"),
        high=number("high"),
        where=str(fields.get("where") or "").strip(),
        search=str(fields.get("search") or "").strip(),
        sort=str(fields.get("sort") or ""),
        meaning=str(fields.get("meaning") or "").strip()[:_LONGEST_WORDS],
        like=None if fields.get("like") in (None, "") else int(fields["like"]),
        side=CAPTION if fields.get("side") == CAPTION else IMAGE,
        undecided=str(fields.get("undecided", "")) in ("1", "True"),
        page=str(fields.get("page") or ""),
    )


def _caption(text: object) -> str:
    """Return a corrected caption, which must not be empty."""
    caption = _text(text, _LONGEST_CAPTION)
    if not caption:
        raise InputError("a caption must not be empty")
    return caption


def _text(text: object, longest: int) -> str:
    """Return typed text without what JSON cannot hold as text."""
    text = text if isinstance(text, str) else ""
    if len(text) > longest:
        raise InputError(f"the text has more than {longest:,} characters: shorten it")
    return text.strip().encode("utf-8", "replace").decode("utf-8")
