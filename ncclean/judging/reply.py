"""Parse the body of a chat completion into a judgement; unclear replies are not answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ncclean.auditing.answers import ANSWERS
from ncclean.base.url_secrets import without_secrets

CANNOT_TELL = ANSWERS[0]
_LONGEST_REASON = 120  # characters of a judge's reply
_MOST_WORDS, _LONGEST_WORDS = 50, 2_000
_NO_PICTURE = "no picture"
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCED = re.compile(r"\A```(?:json)?\s*\n(.*)\n?```\Z", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Judgement:
    """One of `ANSWERS`; `reason` says why a judge's reply counts as `cannot tell`.

    `words` are those that it calls wrong, None if not asked. Tokens are as the server counts them,
    None if it does not. `unreported` counts requests without an answer that may have been
    processed. Without `is_reply` the server did not answer the pair at all.
    """

    answer: str = CANNOT_TELL
    reason: str | None = None
    words: tuple[str, ...] | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    unreported: int = 0
    is_reply: bool = True

    @classmethod
    def without_picture(cls, why: str | None) -> Judgement:
        return cls(reason=f"{_NO_PICTURE}: {why}", is_reply=False)

    @property
    def lacks_picture(self) -> bool:
        return (self.reason or "").startswith(f"{_NO_PICTURE}:")


def read_reply(body: str, asks_words: bool, clean: Callable[[str], str] = str) -> Judgement:
    """Read the body of a response. Never raises: an invalid reply is `cannot tell`.

    `clean` removes secrets from the reply, in one piece or in parts.
    """
    body = clean(body)
    try:
        completion = json.loads(body)
    except (ValueError, RecursionError):
        return Judgement(reason=f"no JSON: {_short(body)}")
    if not isinstance(completion, dict):
        return Judgement(reason="no chat completion")
    usage = completion.get("usage")
    tokens_in, tokens_out = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))
    answer, reason, words = _read_choice(completion.get("choices"), asks_words, clean)
    return Judgement(answer, reason, words, tokens_in, tokens_out)


_Read = tuple[str, str | None, tuple[str, ...] | None]


def _none(reason: str) -> _Read:
    return CANNOT_TELL, reason, None


def _read_choice(choices: Any, asks_words: bool, clean: Callable[[str], str]) -> _Read:
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return _none("no chat completion")
    if message.get("refusal"):
        return _none(f"refusal: {_short(message['refusal'])}")
    finish = choice.get("finish_reason")
    if finish == "content_filter":
        return _none("refusal: content filter")
    if finish == "length":
        return _none("cut short: the answer reached the limit of its length")
    if message.get("tool_calls") or message.get("function_call"):
        return _none("tool call")
    content = clean(_text_of(message.get("content")))
    if not content:
        return _none("empty")
    return _read_content(content, asks_words)


def _text_of(content: Any) -> str:
    if isinstance(content, list):  # of parts, as some servers have it
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    return _THOUGHT.sub("", content).strip() if isinstance(content, str) else ""


def _read_content(content: str, asks_words: bool) -> _Read:
    """The whole content must be one JSON object: prose around it may quote what a caption says."""
    fenced = _FENCED.match(content)
    try:
        fields = json.loads(fenced[1] if fenced else content, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        return _none(f"no JSON: {_short(content)}")
    if not isinstance(fields, dict) or "answer" not in fields:
        return _none(f"no answer in it: {_short(content)}")
    answer = fields["answer"]
    word = answer.strip().lower().replace("_", " ").replace("-", " ") if _is_text(answer) else ""
    if word not in ANSWERS:
        return _none(f"another answer: {_short(answer)}")
    if not asks_words:
        return word, _said(word), None
    words = fields.get("words", [])
    if not isinstance(words, list) or not all(map(_is_text, words)):
        return _none(f"no list of words: {_short(content)}")
    storable = (_storable(text[:_LONGEST_WORDS]) for text in words[:_MOST_WORDS])
    return word, _said(word), tuple(text for text in storable if text.strip())


def _said(word: str) -> str | None:
    return "the judge says so" if word == CANNOT_TELL else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < 1 << 31 else None  # a bool is an int


def _short(value: Any) -> str:
    text = _storable(" ".join((value if isinstance(value, str) else json.dumps(value)).split()))
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."


def _storable(text: str) -> str:
    """Return the text without URL secrets and lone surrogates, which no table can hold."""
    return without_secrets(text.encode("utf-8", "replace").decode())
