"""One of ten answers of an S3 server fails: rows lost, doubled, different."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from records import Row
from reliability_compare import compare
from reliability_jobs import (
    COMMANDS,
    FIGURES,
    REPORT,
    Running,
    emptied,
    finish,
    summed,
    words_of,
    write_corpora,
)

from tests import object_store

_SHARE = 0.1
# The first two write to a disk; the runs that are merged were.
_LOCAL = ("finetune", "run", "merge")
_TRUNCATED = "truncated"
# A server's error before anything is done, a connection that breaks before it and one after it,
# and an answer that ends in its middle.
_FAULTS = ("500", "503", "reset", "answer lost", _TRUNCATED)


class Faulty:
    """A WSGI application of which a share of the answers fail; `faults` counts them by kind."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._rng = random.Random()
        self.share = 0.0
        self.requests = 0
        self.faults: Counter[str] = Counter()

    def begin(self, seed: str, share: float) -> None:
        """Count anew, with other faults."""
        with self._lock:
            self._rng.seed(seed)
            self.share, self.requests, self.faults = share, 0, Counter()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            self.requests += 1
            fault = self._rng.choice(_FAULTS) if self._rng.random() < self.share else None
        if fault in ("500", "503"):
            return self._refused(fault, start_response)
        if fault == "reset":
            return self._reset(fault, environ)
        if fault is None:
            return self._application(environ, start_response)
        answer: list[Any] = []
        body = b"".join(self._application(environ, lambda *args: answer.extend(args)))
        if fault == "answer lost" or not body or environ["REQUEST_METHOD"] == "HEAD":
            return self._reset("answer lost", environ)
        self._count(fault)
        headers = [(name, value) for name, value in answer[1] if name.lower() != "content-length"]
        start_response(answer[0], [*headers, ("Content-Length", str(len(body)))])
        return [body[: len(body) // 2]]

    def _refused(self, fault: str, start_response: Any) -> Iterable[bytes]:
        self._count(fault)
        status, code = {
            "500": ("500 Internal Server Error", "InternalError"),
            "503": ("503 Slow Down", "SlowDown"),
        }[fault]
        start_response(status, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>later</Message></Error>".encode()]

    def _reset(self, fault: str, environ: dict[str, Any]) -> Iterable[bytes]:
        self._count(fault)
        connection: socket.socket = environ["werkzeug.socket"]
        linger = struct.pack("ii", 1, 0)  # closes with a reset
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError

    def _count(self, fault: str) -> None:
        with self._lock:
            self.faults[fault] += 1


def measure(folder: Path, count: int, done: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each run, `count` of every command that reads or writes a store."""
    corpus = write_corpora(folder)
    with object_store.s3() as store:
        faulty = Faulty(store._moto)
        store._moto = faulty
        for path in sorted(path for path in corpus.rglob("*") if path.is_file()):
            object_store.filesystem().put_file(
                str(path), f"corpus/c/{path.relative_to(corpus).as_posix()}"
            )
        for name in (*COMMANDS, *REPORT):
            mine = [row for row in done if row["command"] == name]
            if name in _LOCAL or len(mine) >= count:
                continue
            faulty.begin(name, 0)
            expected = folder / "expected" / name
            finish(words_of(name, "s3://corpus/c", "s3://corpus/out"), folder / "log")
            _fetch(expected)
            for number in range(len(mine), count):
                yield trial(name, folder, faulty, expected, number)


def trial(name: str, folder: Path, faulty: Faulty, expected: Path, number: int) -> dict[str, Any]:
    """One run in which answers fail, to its end, and again if it ended with a sentence."""
    seed = f"{name} {number}"
    faulty.begin(seed, _SHARE)
    starts, said = 1, []
    begin = time.monotonic()
    words = words_of(name, "s3://corpus/c", "s3://corpus/out")
    while code := Running(words, folder / "log").wait():
        text = (folder / "log").read_text("utf-8", "replace")
        if starts == 10 or "Traceback" in text:
            raise RuntimeError(f"ncclean {' '.join(words)} ended with {code}: {text}")
        said.append(text.strip()[-300:])
        starts += 1
    seconds = time.monotonic() - begin
    faulty.share = 0.0
    found = folder / "found"
    _fetch(found)
    return {
        "command": name, "seed": seed, "requests": faulty.requests, "faults": dict(faulty.faults),
        "starts": starts, "said": said, "seconds": round(seconds, 1),
        **asdict(compare(expected, found)),
    }  # fmt: skip


def _fetch(folder: Path) -> None:
    """Move what a command wrote to a store into a folder here."""
    emptied(folder)
    system = object_store.filesystem(fresh=True)
    for path in system.find("corpus/out"):
        if (
            "/.ncclean/" in path or ".work/" in path
        ):  # a log is in as many pieces as it took seconds
            continue
        target = folder / path.removeprefix("corpus/out/")
        target.parent.mkdir(parents=True, exist_ok=True)
        system.get_file(path, str(target))
    if system.exists("corpus/out"):
        system.rm("corpus/out", recursive=True)


def summary(rows: list[Row]) -> list[Row]:
    """A row for each command: how many answers failed, and all that differed."""
    return summed(
        rows,
        sums=("requests", *FIGURES),
        runs=len,
        faults=lambda some: dict(sum((Counter(row["faults"]) for row in some), Counter())),
        started_again=lambda some: sum(row["starts"] - 1 for row in some),
    )
