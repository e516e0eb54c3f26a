"""A server that speaks OpenAI's chat completions: asked with patience, by several threads."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
import threading
import time
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ncclean.base.url_secrets import HIDDEN, without_secrets
from ncclean.errors import InputError, one_line
from ncclean.judging.features import Features, Negotiation
from ncclean.judging.options import KEY_VARIABLE
from ncclean.judging.prompt import Prompt
from ncclean.judging.reply import Judgement, read_reply

if TYPE_CHECKING:
    from openai import APIConnectionError, APIStatusError

_TRIES = 4  # of a request that fails while others are answered
_MOST_BUSY = 8  # of one that the server says to be too busy for
_PATIENCE = 300.0  # seconds without any answer
_FIRST_PATIENCE = 2.0  # the same where nothing listens, before the first answer
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_LARGEST_ANSWER = 8 << 20  # bytes, unpacked: a judgement takes some hundred
_SHORTEST_ENCODED = 8  # characters of a key; what stands for fewer may be anything
_BUSY = (409, 429, 502, 503, 529)
_NOT_REACHED = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol")


class JudgeStopped(InputError):
    """The server cannot be asked, or no longer: the message says why."""


class _LargeAnswer(Exception):
    """An answer is larger than any judgement."""


class JudgeServer:
    """Asks one model about pairs. `ask` may be called by several threads.

    The key comes from the environment. It is in no message: what a server says is cleaned of it.
    Requests run in an event loop, which cancels them after `timeout` seconds, whatever the server
    has sent by then: a client's own limit is of a single read.
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
            max_retries=0,
            timeout=openai.Timeout(None, connect=timeout / 2),
            http_client=openai.DefaultAsyncHttpxClient(
                # Pictures and key are for the address that the person has named.
                follow_redirects=False,
                event_hooks={"response": [_read_answer]},
            ),
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="ncclean-judge", daemon=True).start()
        self._negotiation = Negotiation()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._not_before = 0.0
        self._failing_since: float | None = None
        self._answers = 0

    def stop(self) -> None:
        """End all waiting: requests that are under way are not repeated."""
        self._stopping.set()

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

        unreported = failures = attempts = 0
        refused: set[Features] = set()
        reason: str | None
        before = self._answers
        while True:
            self._wait_for_turn()
            features = self._negotiation.current()
            attempts += 1
            delay = _backoff(attempts)
            try:
                body = self._request(picture, caption, features.fields(self._prompt.schema()))
            except (asyncio.TimeoutError, _LargeAnswer) as error:
                reason = str(error) or f"timeout: no answer within {self._timeout:g} s"
                failures, unreported = failures + 1, unreported + 1
            except openai.APIConnectionError as error:
                reason = self._connection_failure(error)
                failures += reason is not None
                unreported += reason is not None
            except openai.APIStatusError as error:
                message = self._message(error)
                is_refused = error.status_code in (400, 422) or "response_format" in message
                if is_refused and not _is_filtered(error):
                    refused.add(features)
                    if self._negotiation.next(features, message) not in refused:
                        continue
                    return _failed(f"rejected: {message}", unreported)
                self._check_status(error, message)
                if error.status_code < 500 and error.status_code not in (408, *_BUSY):
                    return _failed(f"rejected: {message}", unreported)
                delay = max(delay, _retry_after(error))
                if error.status_code in _BUSY:
                    is_alone = attempts >= _MOST_BUSY and self._answers > before
                    if is_alone and error.status_code != 429:  # others are answered
                        return _failed(f"server error {error.status_code}", unreported)
                    self._hold_back(delay, f"({error.status_code}: {message})")
                    continue
                delay = min(delay, self._patience)
                failures += 1
                reason = f"server error {error.status_code}"
            else:
                self._answered()
                self._negotiation.settle(features)
                reply = read_reply(body, self._prompt.asks_words, self._cleaned)
                return replace(reply, unreported=unreported)
            if reason is not None and failures >= _TRIES:
                return _failed(reason, unreported)
            self._stopping.wait(delay)

    def _request(self, picture: str, caption: str, fields: dict[str, Any]) -> str:
        messages: Any = self._prompt.messages(picture, caption)
        request = self._client.chat.completions.with_raw_response.create(
            model=self._model, messages=messages, extra_body=fields
        )
        until = asyncio.wait_for(request, self._timeout)
        return asyncio.run_coroutine_threadsafe(until, self._loop).result().text

    def _wait_for_turn(self) -> None:
        """Wait until the server takes requests again. Raises `JudgeStopped` after `stop`."""
        while not self._stopping.is_set():
            with self._lock:
                left = self._not_before - time.monotonic()
            if left <= 0:
                return
            self._stopping.wait(left + random.uniform(0, 0.1))
        raise JudgeStopped(f"the judge at {self.url} is asked no longer")

    def _answered(self) -> None:
        with self._lock:
            self._failing_since = None
            self._answers += 1

    def _connection_failure(self, error: APIConnectionError) -> str | None:
        """The reason why a request got no answer; None if it did not reach the server.

        Raises `JudgeStopped` if nothing has been there for long.
        """
        cause = error.__cause__
        name = type(cause).__name__
        if cause is not None and name in _NOT_REACHED:
            patience = self._patience if self._answers else _FIRST_PATIENCE
            self._check_patience(patience, f"cannot be reached: {self._cleaned(one_line(cause))}")
            return None
        # Some versions of the library wrap what is raised while an answer is read.
        return str(cause) if isinstance(cause, _LargeAnswer) else "connection cut"

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

    def _hold_back(self, seconds: float, why: str) -> None:
        """Let no request go for so long. Raises `JudgeStopped` if that is too long."""
        self._check_patience(self._patience, f"is busy {why}")
        if seconds > self._patience:
            raise JudgeStopped(f"the judge at {self.url} asks to wait {seconds:,.0f} s {why}")
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _check_patience(self, patience: float, what: str) -> None:
        with self._lock:
            now = time.monotonic()
            self._failing_since = self._failing_since or now
            seconds = now - self._failing_since
        if seconds >= patience:
            for_long = f", for {seconds:,.0f} s now" if patience > _FIRST_PATIENCE else ""
            raise JudgeStopped(f"the judge at {self.url} {what}{for_long}")

    def _message(self, error: APIStatusError) -> str:
        """Return what the server says about an error, in short."""
        body = error.body
        text = body.get("message") if isinstance(body, dict) else body
        return self._cleaned(" ".join(str(text or error.message).split()))[:200]

    def _cleaned(self, text: str) -> str:
        return self._spellings.sub(HIDDEN, text) if self._key else text


def _failed(reason: str, unreported: int) -> Judgement:
    return Judgement(reason=without_secrets(reason), unreported=unreported, is_reply=False)


def _backoff(attempts: int) -> float:
    """Seconds before the next attempt: doubled each time, by chance a little less."""
    return min(_FIRST_WAIT * 2.0 ** min(attempts - 1, 10), _LONGEST_WAIT) * random.uniform(0.75, 1)


def _retry_after(error: APIStatusError) -> float:
    """The seconds that a server asks to wait: a number, or a date; 0 if it names none to come."""
    value = error.response.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return 0.0
    return seconds if 0 < seconds < 1e9 else 0.0


async def _read_answer(response: Any) -> None:
    """Read a response of httpx, of whichever major version the judge's library takes.

    Raises `_LargeAnswer` for one that does not fit into memory.
    """
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > _LARGEST_ANSWER:
            raise _LargeAnswer(f"an answer of more than {_LARGEST_ANSWER >> 20} MB")
    response._content = bytes(content)  # as its `aread`, which does not read it again


def _spellings(key: str) -> re.Pattern[str]:
    """A pattern of the key as it is, and as JSON, URLs, HTML, hexadecimal and base64 have it."""
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
