"""The tokens of captions: each distinct one is tokenized once, here or in another process."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ncclean.models.text_tower import token_lengths
from ncclean.models.token_counts import MAX_CAPTION_CHARACTERS, tokens_before_cutting


@dataclass(frozen=True)
class Tokens:
    """The tokens of m captions.

    `ids` are (n, context length) of the n distinct ones, `places` (m,) their numbers among these,
    and `counts` (n,) of tokens before cutting, see `tokens_before_cutting`.
    """

    ids: np.ndarray
    places: np.ndarray
    counts: list[int | None]


@dataclass
class Tokenize:
    """Tokenizes captions with a tokenizer of open_clip. Threads take turns."""

    tokenizer: Callable[[list[str]], torch.Tensor]
    # Fast tokenizers refuse two threads: "Already borrowed".
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, captions: Sequence[str]) -> torch.Tensor:
        """Tokenize captions -> (N, context length) int64 token ids."""
        shortened = [caption[:MAX_CAPTION_CHARACTERS] for caption in captions]
        with self._turn:
            return self.tokenizer(shortened)

    def counted(self, captions: Sequence[str]) -> tuple[torch.Tensor, list[int | None]]:
        """(N, context length) ids, and N counts of tokens before cutting."""
        ids = self(captions)
        with self._turn:
            return ids, tokens_before_cutting(self.tokenizer, captions, ids)

    @property
    def is_portable(self) -> bool:
        """Whether a worker process can have the tokenizer.

        A lambda cannot be pickled, and workers do not run the user's script, whose classes and
        functions pickle names by `__main__`.
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
    """Tokenizes the captions of a batch; with `trims`, cuts the padding that all of them have."""

    tokenize: Tokenize
    trims: bool

    def __call__(self, captions: Sequence[str]) -> torch.Tensor:
        """Tokenize captions -> (N, L) int64 token ids."""
        tokens = self.tokenize(captions)
        return tokens[:, : int(token_lengths(tokens).max())] if self.trims else tokens


class TokenCache:
    """The tokens of captions that come one after the other, as those of a shard."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._places: dict[str, int] = {}
        self._ids: list[np.ndarray] = []
        self._counts: list[int | None] = []

    def add(self, captions: Iterable[str]) -> None:
        """Tokenize those captions that have not come before."""
        new = [caption for caption in dict.fromkeys(captions) if caption not in self._places]
        if not new:
            return
        ids, counts = self._tokenize.counted(new)
        self._places |= {caption: len(self._places) + n for n, caption in enumerate(new)}
        self._ids.append(ids.numpy().astype(np.int32))
        self._counts += counts

    def of(self, captions: Sequence[str]) -> Tokens:
        """The tokens of these captions."""
        self.add(captions)
        distinct = {caption: number for number, caption in enumerate(dict.fromkeys(captions))}
        rows = [self._places[caption] for caption in distinct]
        ids = np.concatenate(self._ids)[rows] if rows else np.empty((0, 0), np.int32)
        places = np.array([distinct[caption] for caption in captions], np.int64)
        return Tokens(ids, places, [self._counts[row] for row in rows])
