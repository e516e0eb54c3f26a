"""What a request asks of a server besides the answer, and what to leave out if it refuses."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

MOST_ANSWER_TOKENS = 1_024  # models that think aloud first need some hundreds
_FORMATS = ("json_schema", "json_object", "")
_LENGTHS = ("max_tokens", "max_completion_tokens", "")


@dataclass(frozen=True)
class Features:
    """Fields of the request that not every server knows."""

    format: str = _FORMATS[0]
    length: str = _LENGTHS[0]
    has_temperature: bool = True

    def fields(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The fields as the request has them."""
        fields: dict[str, Any] = {}
        if self.has_temperature:
            fields["temperature"] = 0
        if self.length:
            fields[self.length] = MOST_ANSWER_TOKENS
        if self.format == "json_schema":
            of_schema = {"name": "judgement", "strict": True, "schema": dict(schema)}
            fields["response_format"] = {"type": "json_schema", "json_schema": of_schema}
        elif self.format:
            fields["response_format"] = {"type": self.format}
        return fields

    def without(self, message: str) -> Features | None:
        """Leave out what an error message names, else the next format; None if nothing is left."""
        if self.has_temperature and "temperature" in message:
            return replace(self, has_temperature=False)
        if self.length and self.length in message:
            return replace(self, length=_next(_LENGTHS, self.length))
        if self.format:
            return replace(self, format=_next(_FORMATS, self.format))
        return None


class Negotiation:
    """The features that all requests share, until one was answered with them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._features, self._is_settled = Features(), False

    def current(self) -> Features:
        with self._lock:
            return self._features

    def settle(self, features: Features) -> None:
        """Keep the features: a request with them was answered."""
        with self._lock:
            if not self._is_settled:
                self._features, self._is_settled = features, True

    def next(self, refused: Features, message: str) -> Features:
        """Leave out what a server refused, by its `message`, and return the features to ask with.

        They are all of them again once nothing is left to leave out: the server refused the pair.
        """
        with self._lock:
            if self._features == refused and not self._is_settled:
                # If nothing is left to leave out, the features were not the cause.
                self._features = refused.without(message) or Features()
            return self._features


def _next(values: tuple[str, ...], value: str) -> str:
    return values[values.index(value) + 1]
