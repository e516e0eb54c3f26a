"""Tokenize each distinct caption once, here or in another process."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ncclean.models.text_tower import token_lengths

# No tokenizer needs more characters to fill a context of 77 tokens; a caption of a megabyte would
# take seconds.
MAX_CAPTION_CHARACTERS = 10_000


@dataclass(frozen=True)
class Tokens:
    """The tokens of m captions, of which n are distinct.

    `ids` are (n, context length) of the distinct captions, `places` (m,) their indices among these,
    and `counts` (n,) their tokens before truncation, see `tokens_before_cutting`.
    """

    ids: np.ndarray
    places: np.ndarray
    counts: list[int | None]


@dataclass
class Tokenize:
    """Tokenizes captions with a tokenizer of open_clip; threads take turns."""

    tokenizer: Callable[[list[str]], torch.Tensor]
    # Fast tokenizers refuse two threads: "Already borrowed".
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, captions: Sequence[str]) -> torch.Tensor:
        """Tokenize captions to (N, context length) int64 token ids."""
        shortened = [caption[:MAX_CAPTION_CHARACTERS] for caption in captions]
        with self._turn:
            return self.tokenizer(shortened)

    def counted(self, captions: Sequence[str]) -> tuple[torch.Tensor, list[int | None]]:
        """Return (N, context length) token ids, and N counts of tokens before truncation."""
        ids = self(captions)
        with self._turn:
            return ids, tokens_before_cutting(self.tokenizer, captions, ids)

    @property
    def is_portable(self) -> bool:
        """Whether the tokenizer can be sent to a worker process.

        A lambda cannot be pickled, and workers do not run the user's script, whose classes and
        functions are pickled by the name `__main__`.
        """
        try:
            return b"__main__" not in pickle.dumps(self.tokenizer)
        except Exception:  # which depends on the object
            return False

    def __getstate__(self) -> dict[str, object]:
        return {"tokenizer": self.tokenizer}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]


@dataclass(frozen=True)
class BatchTokens:
    """Tokenizes a batch of captions; with `trims`, cuts their common padding."""

    tokenize: Tokenize
    trims: bool

    def __call__(self, captions: Sequence[str]) -> torch.Tensor:
        """Tokenize captions to (N, L) int64 token ids."""
        tokens = self.tokenize(captions)
        return tokens[:, : int(token_lengths(tokens).max())] if self.trims else tokens


class TokenCache:
    """Tokenizes captions that come in sequence, such as those of a shard, each once."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._places: dict[str, int] = {}
        self._ids: list[np.ndarray] = []
        self._counts: list[int | None] = []

    def add(self, captions: Iterable[str]) -> None:
        """Tokenize the captions that have not been added before."""
        new = [caption for caption in dict.fromkeys(captions) if caption not in self._places]
        if not new:
            return
        ids, counts = self._tokenize.counted(new)
        self._places |= {caption: len(self._places) + n for n, caption in enumerate(new)}
        self._ids.append(ids.numpy().astype(np.int32))
        self._counts += counts

    def of(self, captions: Sequence[str]) -> Tokens:
        """Return the tokens of these captions."""
        self.add(captions)
        distinct = {caption: number for number, caption in enumerate(dict.fromkeys(captions))}
        rows = [self._places[caption] for caption in distinct]
        ids = np.concatenate(self._ids)[rows] if rows else np.empty((0, 0), np.int32)
        places = np.array([distinct[caption] for caption in captions], np.int64)
        return Tokens(ids, places, [self._counts[row] for row in rows])


def tokens_before_cutting(
    tokenizer: Callable[[list[str]], torch.Tensor], captions: Sequence[str], tokens: torch.Tensor
) -> list[int | None]:
    """Return the number of tokens of each of N captions, with those that mark start and end.

    `tokens` (N, L) are the tokenizer's captions, cut at L: one has more than L tokens if and only
    if it was cut. None for captions that are too long to be read whole, and for tokenizers that
    cannot encode without cutting.
    """
    count = _uncut_counts(tokenizer)
    if count is None:
        return [None] * len(captions)
    is_short = [len(caption) <= MAX_CAPTION_CHARACTERS for caption in captions]
    lengths = token_lengths(tokens)
    # Padding other than 0 may also be the end of a text, so only 0 shows where a text ends.
    may_be_cut = (lengths == tokens.shape[1]) | (tokens[:, -1] != 0)
    counts = [
        length if short else None for length, short in zip(lengths.tolist(), is_short, strict=True)
    ]
    unknown = [row for row in may_be_cut.nonzero()[:, 0].tolist() if is_short[row]]
    for row, length in zip(unknown, count([captions[row] for row in unknown]), strict=True):
        counts[row] = length
    return counts


def _uncut_counts(tokenizer: Any) -> Callable[[list[str]], list[int]] | None:
    """Return the function that counts texts' tokens uncut, for open_clip's tokenizers."""
    if hasattr(tokenizer, "encode") and hasattr(tokenizer, "sot_token_id"):  # of CLIP
        return lambda texts: [len(tokenizer.encode(text)) + 2 for text in texts]
    inner, clean = getattr(tokenizer, "tokenizer", None), getattr(tokenizer, "clean_fn", None)
    if inner is None or clean is None:
        return None
    of_clips = getattr(tokenizer, "tokenizer_mode", "") == "clips"  # adds start, end and class

    def counts(texts: list[str]) -> list[int]:
        if not texts:
            return []
        ids = inner([clean(text) for text in texts], add_special_tokens=not of_clips, verbose=False)
        return [len(token_ids) + 3 * of_clips for token_ids in ids["input_ids"]]

    return counts
