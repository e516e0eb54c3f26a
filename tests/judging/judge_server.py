"""A server that speaks OpenAI's chat completions, whose judge is the bundled estimator.

It decodes the picture, compares it with the caption by the cosine, and can do all that servers do
to those who ask them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MATCHED_ABOVE = 0.25  # cosine of the bundled estimator


@dataclass
class Asked:
    """One request: what it says, and the n-th time that its pair is asked about, from 1."""

    body: dict[str, Any]
    headers: Any  # by name, in any case
    time: float
    times: int = 1

    @property
    def system(self) -> str:
        return str(self.body["messages"][0]["content"])

    @property
    def picture(self) -> bytes:
        url = self.body["messages"][1]["content"][0]["image_url"]["url"]
        assert url.startswith("data:image/jpeg;base64,")
        return base64.b64decode(url.partition(",")[2])

    @property
    def text(self) -> str:
        """The part with the caption."""
        return str(self.body["messages"][1]["content"][1]["text"])

    @property
    def number(self) -> int:
        """A number of the caption, the same in every process."""
        return zlib.crc32(self.text.encode())

    @property
    def caption(self) -> str:
        """The caption, taken from its part as a judge that is not fooled does."""
        return str(json.loads(self.text[self.text.index('"') :]))


@dataclass
class Reply:
    """What the server sends. `cut` bytes before the end the connection is closed."""

    content: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None  # in place of a completion
    error: str = ""
    code: str = ""
    seconds: float = 0.0
    cut: int = 0
    trickle: float = 0.0  # seconds between two bytes
    message: dict[str, Any] = field(default_factory=dict)
    finish: str = "stop"
    usage: dict[str, int] | None = field(
        default_factory=lambda: {"prompt_tokens": 900, "completion_tokens": 10}
    )

    def data(self) -> bytes:
        if self.body is not None:
            return self.body.encode()
        if self.status != 200:
            return json.dumps({"error": {"message": self.error, "code": self.code}}).encode()
        message = {"role": "assistant", "content": self.content, **self.message}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        completion = {"id": "1", "object": "chat.completion", "choices": [choice]}
        return json.dumps({**completion, "usage": self.usage}).encode()


Behaviour = Callable[[Asked], Reply | None]


def says(answer: str, **fields: Any) -> Reply:
    return Reply(json.dumps({**fields, "answer": answer}))


@dataclass
class Judge:
    """The log of a server: `asked` in order, `answered` pairs by picture and caption."""

    url: str
    behave: Behaviour
    asked: list[Asked] = field(default_factory=list)
    answered: Counter[tuple[bytes, str]] = field(default_factory=Counter)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def captions(self) -> list[str]:
        return [asked.caption for asked in self.asked]


@contextlib.contextmanager
def serving(behave: Behaviour) -> Iterator[Judge]:
    """A server on this machine that answers as `behave` says; None from it cuts the connection."""
    server = _Server(("127.0.0.1", 0), _Handler)
    judge = Judge(f"http://127.0.0.1:{server.server_port}/v1", behave)
    server.judge = judge
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    judge: Judge

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed break their connections: nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        judge = self.server.judge
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions", self.path
        asked = Asked(body, self.headers, time.monotonic())
        pair = asked.picture, asked.text
        with judge._lock:
            judge.asked.append(asked)
            asked.times = sum((o.picture, o.text) == pair for o in judge.asked)
            judge._at_once += 1
            judge.most_at_once = max(judge.most_at_once, judge._at_once)
        try:
            reply = judge.behave(asked)
            if reply is not None:
                time.sleep(reply.seconds)
                self._send(reply)
        finally:
            with judge._lock:
                judge._at_once -= 1
        if reply is None:
            self.close_connection = True
            self.connection.close()
        elif reply.status == 200 and not reply.cut:
            judge.answered[pair] += 1

    def _send(self, reply: Reply) -> None:
        data = reply.data()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if reply.trickle:
            with contextlib.suppress(OSError):
                for byte in data:
                    self.wfile.write(bytes([byte]))
                    time.sleep(reply.trickle)
            return
        self.wfile.write(data[: len(data) - reply.cut])
        if reply.cut:
            self.wfile.flush()
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to print."""


class EstimatorJudge:
    """Judges by the cosine of picture and caption; one at a time, as the model is not shared."""

    def __init__(self, estimator: Any) -> None:
        from ncclean.data.decode import ImageDecoder

        self._estimator = estimator
        self._decoder = ImageDecoder(estimator.preprocessing)
        self._lock = threading.Lock()
        self._known: dict[tuple[bytes, str], float] = {}

    def cosine(self, picture: bytes, caption: str) -> float:
        with self._lock:
            pair = picture, caption
            if pair not in self._known:
                self._known[pair] = self._cosine(picture, caption)
            return self._known[pair]

    def _cosine(self, picture: bytes, caption: str) -> float:
        pixels = self._decoder(picture).pixels[None]
        image = self._estimator.encode_image(pixels)
        return float((image @ self._estimator.encode_text([caption]).T).item())

    def answer(self, asked: Asked) -> str:
        is_match = self.cosine(asked.picture, asked.caption) >= MATCHED_ABOVE
        return "match" if is_match else "mismatch"

    def __call__(self, asked: Asked) -> Reply:
        return says(self.answer(asked))
