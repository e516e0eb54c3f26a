"""Counts the tokens of captions before a tokenizer cuts them at the model's context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ncclean.models.text_tower import token_lengths

# No tokenizer needs more characters than this to fill a context of 77 tokens; a caption of a
# megabyte would take seconds.
MAX_CAPTION_CHARACTERS = 10_000
Tokenizer = Callable[[list[str]], torch.Tensor]


def tokens_before_cutting(
    tokenizer: Tokenizer, captions: Sequence[str], tokens: torch.Tensor
) -> list[int | None]:
    """Count the tokens of each of N captions, with those that mark start and end.

    `tokens` (N, L) are the captions as the tokenizer gives them, cut at L: one has more than L
    tokens if and only if it was cut. None for captions that are too long to be read whole, and for
    tokenizers that cannot encode without cutting.
    """
    count = _uncut_counts(tokenizer)
    if count is None:
        return [None] * len(captions)
    is_short = [len(caption) <= MAX_CAPTION_CHARACTERS for caption in captions]
    lengths = token_lengths(tokens)
    # Padding other than 0 may be the end of a text as well, so only 0 says where a text ends.
    may_be_cut = (lengths == tokens.shape[1]) | (tokens[:, -1] != 0)
    counts = [
        length if short else None for length, short in zip(lengths.tolist(), is_short, strict=True)
    ]
    unknown = [row for row in may_be_cut.nonzero()[:, 0].tolist() if is_short[row]]
    for row, length in zip(unknown, count([captions[row] for row in unknown]), strict=True):
        counts[row] = length
    return counts


def _uncut_counts(tokenizer: Any) -> Callable[[list[str]], list[int]] | None:
    """The function that counts the tokens of texts without cutting, of open_clip's tokenizers."""
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
        return [len(one) + 3 * of_clips for one in ids["input_ids"]]

    return counts
