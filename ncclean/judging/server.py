"""Query a server that speaks OpenAI's chat completions, from several threads.

`openai` retries transient failures, and waits between them as the server says.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import os
import re
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ncclean.base.url_secrets import HIDDEN, without_secrets
from ncclean.errors import InputError, one_line
from ncclean.judging.budget import MOST_ANSWER_TOKENS
from ncclean.judging.options import KEY_VARIABLE
from ncclean.judging.prompt import Prompt
from ncclean.judging.reply import Judgement, read_reply

if TYPE_CHECKING:
    from openai import APIStatusError

_RETRIES = 6  # by `openai`, within some 25 seconds if the server names no time to wait
_FIRST_RETRIES = 2  # until the server has sent anything
_TRIES = 4  # for a request without a timely answer
_PATIENCE = 300.0  # seconds without any answer
_PAUSE = 8.0  # seconds, the longest of `openai`
_LARGEST_ANSWER = 8 << 20  # bytes, unpacked: a judgement takes some hundred
_SHORTEST_ENCODED = 8  # characters of a key; shorter matches may be anything
_BUSY = (409, 429, 502, 503, 529)
_NOT_REACHED = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol")
_unanswered: ContextVar[list[Exception]] = ContextVar("_unanswered")


class JudgeStopped(InputError):
    """The server cannot be asked, or no longer; the message says why."""


class _NoAnswer(Exception):
    """A request got no timely answer, or one larger than any judgement; the message says which."""


class JudgeServer:
    """Asks one model about pairs. `ask` may be called by several threads.

    The key comes from the environment. It is in no message: server replies are cleaned of it.
    Requests run in an event loop, which cancels each after `timeout` seconds, whatever has arrived
    by then: a client's own limit applies to a single read.
    """

    def __init__(
        self,
        url: str,
        model: str,
        prompt: Prompt,
        *,
        timeout: float = 120.0,
        patience: float | None = None,
    ) -> None:
        import openai

        self.url = without_secrets(url)
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            is_address = False
        if not is_address:
            raise InputError(f"--judge takes a URL such as http://localhost:8000/v1, got {url}")
        self._model, self._prompt = model, prompt
        self._patience = _PATIENCE if patience is None else patience
        self._timeout = timeout
        self._key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise InputError(f"{KEY_VARIABLE} has characters that no key has")
        self._spellings = _spellings(self._key)
        self._client = openai.AsyncOpenAI(
            base_url=url,
            api_key=self._key or "none",
            max_retries=_RETRIES,
            timeout=openai.Timeout(None, connect=timeout / 2),
            http_client=self._bounded_client(),
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="ncclean-judge", daemon=True).start()
        self._stopping = threading.Event()
        self._is_reached = False
        self._pausing: set[Any] = set()  # tasks that wait before they ask again
        self._answers, self._answered_at = 0, 0.0
        self._settled: dict[str, Any] | None = None  # fields that the server has answered

    def _bounded_client(self) -> Any:
        """Return an HTTP client that limits the time and memory of each request."""
        import openai

        server = self

        class BoundedClient(openai.DefaultAsyncHttpxClient):
            async def send(self, request: Any, **options: Any) -> Any:
                task = asyncio.current_task()
                if server._stopping.is_set():
                    raise asyncio.CancelledError
                server._pausing.discard(task)
                try:
                    sending = super().send(request, **options)
                    response = await asyncio.wait_for(sending, server._timeout)
                except Exception as error:
                    if type(error).__name__ not in _NOT_REACHED:
                        _unanswered.get().append(error)
                    if isinstance(error, asyncio.TimeoutError):
                        what = f"timeout: no answer within {server._timeout:g} s"
                        raise _NoAnswer(what) from error
                    raise
                finally:
                    server._pausing.add(task)
                server._is_reached = True
                return response

        # Image and key are only for the address that the person has named.
        return BoundedClient(follow_redirects=False, event_hooks={"response": [_read_answer]})

    def stop(self) -> None:
        """End all waiting: do not repeat requests in progress."""
        self._stopping.set()
        self._loop.call_soon_threadsafe(self._end_pauses)

    def _end_pauses(self) -> None:
        for task in self._pausing:
            task.cancel()

    def close(self) -> None:
        """Close the connections."""
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def ask(self, picture: str, caption: str) -> Judgement:
        """Ask about one pair; `picture` is a data URL.

        A pair that the server fails on, while it answers others, is a judgement without a reply.
        Raises `JudgeStopped` if the server cannot be reached, refuses the key, does not know the
        model, or has not answered anything for long.
        """
        import openai

        self._answered_at = self._answered_at or time.monotonic()
        failures = rounds = before = 0
        fields = _fields(self._prompt.schema()) if self._settled is None else self._settled
        unanswered: list[Exception] = []
        while not self._stopping.is_set():
            try:
                body = self._request(picture, caption, fields, unanswered)
            except concurrent.futures.CancelledError:
                break
            except _NoAnswer as error:
                failures += 1
                if failures >= _TRIES:
                    return _no_reply(str(error), unanswered)
            except openai.APIConnectionError as error:
                cause = error.__cause__ or error
                if type(cause).__name__ not in _NOT_REACHED:
                    # Some versions of the library wrap whatever is raised.
                    is_ours = isinstance(cause, _NoAnswer)
                    return _no_reply(str(cause) if is_ours else "connection cut", unanswered)
                self._check_patience(f"cannot be reached: {self._cleaned(one_line(cause))}")
            except openai.APIStatusError as error:
                message, status = self._message(error), error.status_code
                is_refused = status in (400, 422) or "response_format" in message
                if is_refused and not _is_filtered(error):
                    fewer = _without(fields, message) if self._settled is None else self._settled
                    if fewer not in (None, fields):
                        fields = fewer
                        continue
                else:
                    self._check_status(error, message)
                # Others may have been answered before the server failed, but not in a second round.
                is_alone = status != 429 and rounds > 0 and self._answers > before
                if status in _BUSY and not is_alone:
                    rounds, before = rounds + 1, self._answers
                    self._wait(error, f"({status}: {message})")
                    continue
                what = f"server error {status}" if status >= 500 else f"rejected: {message}"
                return _no_reply(what, unanswered)
            else:
                self._answers, self._answered_at = self._answers + 1, time.monotonic()
                self._settled = fields if self._settled is None else self._settled
                reply = read_reply(body, self._prompt.asks_words, self._cleaned)
                return replace(reply, unreported=len(unanswered))
        raise JudgeStopped(f"the judge at {self.url} is asked no longer")

    def _request(
        self, picture: str, caption: str, fields: Mapping[str, Any], unanswered: list[Exception]
    ) -> str:
        """Return the body of an answer; `unanswered` receives the requests that got none."""
        messages: Any = self._prompt.messages(picture, caption)
        retries = _RETRIES if self._is_reached else _FIRST_RETRIES
        client = self._client.with_options(max_retries=retries)

        async def ask() -> Any:
            _unanswered.set(unanswered)
            try:
                return await client.chat.completions.with_raw_response.create(
                    model=self._model, messages=messages, extra_body=fields
                )
            finally:
                self._pausing.discard(asyncio.current_task())

        return str(asyncio.run_coroutine_threadsafe(ask(), self._loop).result().text)

    def _wait(self, error: APIStatusError, why: str) -> None:
        """Wait after `openai` has given up. Raises `JudgeStopped` if that takes too long."""
        self._check_patience(f"is busy {why}")
        asked = error.response.headers.get("retry-after", "")
        seconds = float(asked) if asked.isdecimal() else 0.0
        if seconds > self._patience:
            raise JudgeStopped(f"the judge at {self.url} asks to wait {seconds:,.0f} s {why}")
        self._stopping.wait(seconds or _PAUSE)

    def _check_patience(self, what: str) -> None:
        """Raise `JudgeStopped` if nothing has arrived for long, or nothing is there."""
        if not self._is_reached:
            raise JudgeStopped(f"the judge at {self.url} {what}")
        seconds = time.monotonic() - self._answered_at
        if seconds >= self._patience:
            raise JudgeStopped(f"the judge at {self.url} {what}, for {seconds:,.0f} s now")

    def _check_status(self, error: APIStatusError, message: str) -> None:
        """Raise `JudgeStopped` where no request can succeed."""
        status = error.status_code
        if 300 <= status < 400:
            target = self._cleaned(error.response.headers.get("location", "nowhere"))
            raise JudgeStopped(
                f"the judge at {self.url} redirects to {target}: give that address to --judge if "
                "the pictures may go there"
            )
        if status in (401, 403):
            what = f"refuses the key in {KEY_VARIABLE}" if self._key else "wants a key"
            advice = "" if self._key else f": set {KEY_VARIABLE}"
            raise JudgeStopped(f"the judge at {self.url} {what} ({status}){advice}")
        if status in (404, 405):
            raise JudgeStopped(
                f"the judge at {self.url} has no model {self._model}, or is not at this address, "
                f"which mostly ends in /v1 ({status}: {message})"
            )
        if status == 402 or _code(error) == "insufficient_quota":
            raise JudgeStopped(f"the judge at {self.url} has no credit left ({message})")

    def _message(self, error: APIStatusError) -> str:
        """Return what the server says about an error, in short."""
        body = error.body
        text = body.get("message") if isinstance(body, dict) else body
        return self._cleaned(" ".join(str(text or error.message).split()))[:200]

    def _cleaned(self, text: str) -> str:
        return self._spellings.sub(HIDDEN, text) if self._key else text


def _no_reply(reason: str, unanswered: list[Exception]) -> Judgement:
    unreported = len(unanswered)
    return Judgement(reason=without_secrets(reason), unreported=unreported, is_reply=False)


def _fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a request that not every server knows."""
    of_schema = {"name": "judgement", "strict": True, "schema": dict(schema)}
    return {
        "temperature": 0,
        "max_tokens": MOST_ANSWER_TOKENS,
        "response_format": {"type": "json_schema", "json_schema": of_schema},
    }


def _without(fields: Mapping[str, Any], message: str) -> dict[str, Any] | None:
    """Drop the fields that an error message names, else the format; None if none are left."""
    for name in ("temperature", "max_tokens", "max_completion_tokens", "response_format"):
        if name in fields and (name in message or name == "response_format"):
            fewer = {other: value for other, value in fields.items() if other != name}
            if name == "max_tokens":  # of newer models
                fewer["max_completion_tokens"] = fields[name]
            if name == "response_format" and fields[name]["type"] == "json_schema":
                fewer[name] = {"type": "json_object"}
            return fewer
    return None


async def _read_answer(response: Any) -> None:
    """Read a response of httpx, of whichever major version the judge's library takes.

    Raises `_NoAnswer` for one that does not fit into memory.
    """
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > _LARGEST_ANSWER:
            raise _NoAnswer(f"an answer of more than {_LARGEST_ANSWER >> 20} MB")
    response._content = bytes(content)  # as its `aread`, which does not read it again


def _spellings(key: str) -> re.Pattern[str]:
    """Return a pattern of the key, plain or encoded: JSON, URL, HTML, hexadecimal, base64."""
    # Repetitions are bounded: an answer of nothing but backslashes is read once, not squared.
    one = r"(?:\\{{0,8}}(?:u00|x|)|%(?:25){{0,4}}|&\#x0{{0,6}}){:02x};?|\\{{0,8}}{}|&\#0{{0,6}}{};"
    letters = (one.format(ord(letter), re.escape(letter), ord(letter)) for letter in key)
    forms = ["".join(f"(?:{letter})" for letter in letters)]
    if len(key) >= _SHORTEST_ENCODED:
        for before in range(3):  # bytes of the group of three in which the key begins
            encoded = base64.b64encode(b"\0" * before + key.encode()).decode().rstrip("=")
            inside = encoded[-(-before * 4 // 3) :][: -1 if (before + len(key)) % 3 else None]
            forms.append("".join({"+": "[+-]", "/": "[/_]"}.get(one, one) for one in inside))
    return re.compile("|".join(forms), re.IGNORECASE)


def _code(error: APIStatusError) -> str:
    code = error.body.get("code") if isinstance(error.body, dict) else None
    return code if isinstance(code, str) else ""


def _is_filtered(error: APIStatusError) -> bool:
    """Whether the server refuses the content of a pair."""
    return _code(error) in ("content_filter", "content_policy_violation")
