"""Parts of a caption: its sentences, and windows of sentences longer than a model's context.

sentencex finds the sentences; it knows abbreviations, decimals, and the punctuation of scripts
without spaces. Thai and Lao have no full stop: they are cut only where they exceed the context.
Joined, the parts equal the caption, character for character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from sentencex import segment

# Further sentences form one part: a caption of ten thousand full stops costs no more.
MOST_PARTS = 100
# Where to cut a long sentence: after the first of these kinds that occurs near its middle.
_BREAKS = (re.compile(r"[;:]\s|[—；：]"), re.compile(r",\s|[，、،]"), re.compile(r"\s"))
_MARKER = re.compile(r"\s*([-*•·]|\(?\d{1,3}[.)])\s*")  # of a list item
_KHMER_STOP = re.compile(r"(?<=[។៕])\s*")  # unknown to sentencex
_STOPS = (".", "!", "?")
TokenCounts = Callable[[Sequence[str]], Sequence[int | None]]


def sentence_starts(caption: str) -> list[int]:
    """Return the character indices at which the sentences of a caption start, 0 first.

    An item marker such as `2.` or `-` belongs to the text after it, and any other text without a
    letter to the text before it. A full stop inside a word, as in `IMG_1.JPG`, ends nothing.
    """
    starts, begin, is_closed = [0], 0, False
    for sentence in _segmented(caption):
        has_words = any(character.isalpha() for character in sentence)
        is_apart = caption[begin - 1 : begin] not in _STOPS
        if is_closed and is_apart and (has_words or _MARKER.fullmatch(sentence)):
            starts.append(begin)
            is_closed = False
        is_closed = is_closed or has_words
        begin += len(sentence)
    return starts[:: -(-len(starts) // MOST_PARTS)]


def _segmented(caption: str) -> Iterator[str]:
    """Return sentencex's sentences, further split at Khmer full stops."""
    for sentence in segment("en", caption):
        ends = [match.end() for match in _KHMER_STOP.finditer(sentence)]
        yield from (sentence[b:e] for b, e in pairwise([0, *ends, len(sentence)]) if b < e)


def split_captions(
    captions: Sequence[str], count_tokens: TokenCounts, context_length: int
) -> list[list[int]]:
    """Return the character indices at which the parts of each caption start, 0 first.

    `count_tokens` counts the tokens of texts before truncation to `context_length`. A longer
    sentence is halved, after a clause or a word near its middle, until its pieces fit.
    """
    starts = [sentence_starts(caption) for caption in captions]
    halves = [
        (number, begin, end)
        for number, caption in enumerate(captions)
        for begin, end in pairwise([*starts[number], len(caption)])
    ]
    while todo := [
        (number, begin, end)
        for number, begin, end in halves
        if len(starts[number]) < MOST_PARTS
        and _may_exceed(captions[number][begin:end], context_length)
    ]:
        counts = count_tokens([captions[number][begin:end].strip() for number, begin, end in todo])
        halves = []
        for (number, begin, end), count in zip(todo, counts, strict=True):
            if count is not None and count <= context_length:
                continue
            if len(starts[number]) >= MOST_PARTS:
                continue
            middle = begin + _middle(captions[number][begin:end])
            starts[number].append(middle)
            halves += [(number, begin, middle), (number, middle, end)]
    return [sorted(of_caption) for of_caption in starts]


def _may_exceed(text: str, context_length: int) -> bool:
    """Check whether a text of several characters may have more tokens than a limit.

    A token is at least a byte, and two tokens mark start and end.
    """
    words = text.strip()
    return len(words) > 1 and len(words.encode()) > context_length - 2


def _middle(text: str) -> int:
    """Return where to cut a text: after the break in its middle half that is nearest to its middle.

    Surrounding blanks do not count: neither half is empty without them.
    """
    blanks, text = len(text) - len(text.lstrip()), text.strip()
    half = len(text) / 2
    for kind in _BREAKS:
        ends = [match.end() for match in kind.finditer(text, len(text) // 4, len(text) * 3 // 4)]
        if ends:
            return blanks + min(ends, key=lambda end: abs(end - half))
    middle = len(text) // 2
    while middle < len(text) - 1 and unicodedata.category(text[middle])[0] == "M":
        middle += 1  # a mark stays with its letter
    return blanks + middle


def parts_of(caption: str, starts: Sequence[int]) -> list[str]:
    """Return the parts of a caption that start at the character indices `starts`, stripped."""
    return [caption[begin:end].strip() for begin, end in pairwise([*starts, len(caption)])]
