"""Budget tokens: estimated for a request, used so far, and the limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ncclean.judging.prompt import Prompt
from ncclean.judging.reply import Judgement

MOST_ANSWER_TOKENS = 1_024  # reasoning models first need some hundreds
_PIXELS_PER_TOKEN = 28 * 28  # side of a patch that common models encode as one token
_BYTES_PER_TOKEN = 4
_OF_FORMAT = 100  # the schema, and the marks around messages
_ANSWER_TOKENS, _WORDS_TOKENS = 15, 45


@dataclass(frozen=True)
class TokenEstimate:
    """Approximate tokens of a prompt's requests: tokenizers and models differ."""

    prompt: Prompt
    longest: int  # pixels

    def of_request(self, caption: str, width: int | None = None, height: int | None = None) -> int:
        """Return input tokens of one request; an image of unknown size counts as a square."""
        width, height = width or self.longest, height or self.longest
        scale = min(1.0, self.longest / max(width, height))
        picture = math.ceil(width * scale * height * scale / _PIXELS_PER_TOKEN)
        texts = (self.prompt.system, self.prompt.user, caption)
        return picture + _OF_FORMAT + sum(len(t.encode()) for t in texts) // _BYTES_PER_TOKEN

    @property
    def of_answer(self) -> int:
        return _WORDS_TOKENS if self.prompt.asks_words else _ANSWER_TOKENS


@dataclass
class Budget:
    """Tokens used, and those reserved for requests in progress."""

    most: int | None = None
    used: int = 0
    largest: int = 0  # request so far, tokens in
    _aside: int = 0

    def reserve(self, estimate: int) -> int | None:
        """Reserve tokens for a request; None if it might exceed the budget."""
        # Before the server has reported any, an estimate may be far too low.
        tokens = max(estimate, self.largest or 2 * estimate) + MOST_ANSWER_TOKENS
        if self.most is not None and self.used + self._aside + tokens > self.most:
            return None
        self._aside += tokens
        return tokens

    def settle(self, reserved: int, estimate: int, judgement: Judgement) -> None:
        """Replace a request's reserved tokens by those used."""
        self._aside -= reserved
        self.largest = max(self.largest, judgement.tokens_in or 0)
        self.used += tokens_of(judgement, estimate)


def tokens_of(judgement: Judgement, estimate: int) -> int:
    """Tokens of a pair: as the server counts them, else by estimate."""
    tokens = judgement.unreported * estimate
    if judgement.is_reply:
        tokens += estimate if judgement.tokens_in is None else judgement.tokens_in
        tokens += judgement.tokens_out or 0
    return tokens
