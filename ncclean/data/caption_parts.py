"""Parts of a caption: its sentences, and windows of what is longer than a model's context.

Sentences are those of sentencex, which knows abbreviations, decimals, and the punctuation of
scripts without spaces. Thai and Lao have no full stop: only what exceeds the context is cut. Parts
cover the caption: put together, they are it, character for character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from sentencex import segment

# Further sentences are taken together: a caption of ten thousand full stops costs no more.
MOST_PARTS = 100
# Behind these a long sentence is cut, the first kind that there is near its middle.
_BREAKS = (re.compile(r"[;:]\s|[—；：]"), re.compile(r",\s|[，、،]"), re.compile(r"\s"))
_MARKER = re.compile(r"\s*([-*•·]|\(?\d{1,3}[.)])\s*")  # of an item in a list
_KHMER_STOP = re.compile(r"(?<=[។៕])\s*")  # which sentencex does not know
_STOPS = (".", "!", "?")
TokenCounts = Callable[[Sequence[str]], Sequence[int | None]]


def sentence_starts(caption: str) -> list[int]:
    """The characters at which the sentences of a caption begin, 0 first.

    The marker of an item, such as `2.` or `-`, belongs to what follows it, and anything else
    without a letter to what is before it. A full stop inside of a word, as in `IMG_1.JPG`, ends
    nothing.
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
    """The sentences as sentencex has them, and those that end with a Khmer full stop."""
    for sentence in segment("en", caption):
        ends = [match.end() for match in _KHMER_STOP.finditer(sentence)]
        yield from (sentence[b:e] for b, e in pairwise([0, *ends, len(sentence)]) if b < e)


def split_captions(
    captions: Sequence[str], count_tokens: TokenCounts, context_length: int
) -> list[list[int]]:
    """The characters at which the parts of each caption begin, 0 first.

    `count_tokens` counts the tokens of texts before they are cut at `context_length`. A sentence of
    more is halved, behind a clause or a word near its middle, until its pieces fit.
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
    """Whether a text of several characters may have more tokens.

    A token is at least a byte, and two mark start and end.
    """
    words = text.strip()
    return len(words) > 1 and len(words.encode()) > context_length - 2


def _middle(text: str) -> int:
    """The place to cut a text: behind a break in its middle half, nearest to its middle.

    Blanks around it do not count: neither half is empty without its own.
    """
    blanks, text = len(text) - len(text.lstrip()), text.strip()
    half = len(text) / 2
    for kind in _BREAKS:
        ends = [found.end() for found in kind.finditer(text, len(text) // 4, len(text) * 3 // 4)]
        if ends:
            return blanks + min(ends, key=lambda end: abs(end - half))
    middle = len(text) // 2
    while middle < len(text) - 1 and unicodedata.category(text[middle])[0] == "M":
        middle += 1  # a mark stays with its letter
    return blanks + middle


def parts_of(caption: str, starts: Sequence[int]) -> list[str]:
    """The parts of a caption that begin at `starts`, without blanks around them."""
    return [caption[begin:end].strip() for begin, end in pairwise([*starts, len(caption)])]
