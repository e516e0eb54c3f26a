"""Answers of a server that anybody may run: read whole, or not beyond a size and a time."""

from __future__ import annotations

import time
from typing import Any

LARGEST_ANSWER = 8 << 20  # bytes, unpacked: a judgement takes some hundred


class EndlessAnswer(Exception):
    """A server's answer has not ended within the bounds; the message says which."""


class BoundedAnswers:
    """Reads the body of each answer, as a response hook of an HTTP client.

    The client's own limit is of a single read: a byte now and then would hold a thread for days.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, response: Any) -> None:
        """Read a response of httpx, of whichever major version the judge's library takes.

        Raises `EndlessAnswer` beyond the bounds.
        """
        end = time.monotonic() + self._seconds
        content = bytearray()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > LARGEST_ANSWER:
                raise EndlessAnswer(f"an answer of more than {LARGEST_ANSWER >> 20} MB")
            if time.monotonic() > end:
                raise EndlessAnswer(f"timeout: no end within {self._seconds:g} s")
        response._content = bytes(content)  # as its `read`, which does not read it again
