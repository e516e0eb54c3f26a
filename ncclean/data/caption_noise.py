"""Make captions wrong: change one word (`hard`), one sentence, or everything (`junk`).

`change_one_word` knows classes of English words that an image shows: colours, numbers, sizes,
relative positions, people, animals, and so on. It replaces a word by another of its class, so the
caption stays a sentence with that word as its only error. Words on the same line of
`word_classes.txt` mean the same and never replace one another. A caption without any of these words
cannot be changed.
"""

from __future__ import annotations

import bisect
import random
from itertools import pairwise

from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.word_classes import WordClasses, exchanged


def is_changeable(caption: str) -> bool:
    """Check whether `change_one_word` can change a caption: it has a word of a class."""
    return bool(WordClasses.bundled().places(caption))


def change_one_word(caption: str, rng: random.Random) -> str | None:
    """Return the caption with one word replaced by another of its class, or None if it has none.

    Case and number are kept; a preceding "a" or "an" follows the new word.
    """
    classes = WordClasses.bundled()
    places = classes.places(caption)
    if not places:
        return None
    place = places[int(rng.random() * len(places))]
    others = classes.others(place)
    words = others[int(rng.random() * len(others))]
    return exchanged(caption, place, words[int(rng.random() * len(words))])


def junk_caption(rng: random.Random) -> str:
    """Return boilerplate or a file name (`junk` noise), which describes no image."""
    number = int(rng.random() * 10000)
    captions = (
        f"IMG_{number:04d}.JPG",
        f"DSC{number:05d}",
        f"image{number % 100}.png",
        f"screenshot_{number}.jpg",
        "click here to enlarge the image",
        "image may contain: indoor",
        "no description available",
        "Loading...",
        "untitled",
        f"product thumbnail {number}",
        "sign up for our newsletter today",
        "home | about us | contact | privacy policy",
        f"photo {number} of 9999",
        "copyright all rights reserved",
    )
    return captions[int(rng.random() * len(captions))]


def with_foreign_sentence(caption: str, other: str, rng: random.Random) -> tuple[str, int | None]:
    """Replace a sentence by one of another caption: `foreign_sentence` noise.

    Returns the caption and the index of its foreign sentence. A caption that already has all
    sentences of the other is unchanged, without a foreign sentence.
    """
    starts, foreign = sentence_starts(caption), _drawn_sentence(caption, other, rng)
    if foreign is None:
        return caption, None
    place = int(rng.random() * len(starts))
    begin, end = list(pairwise([*starts, len(caption)]))[place]
    old = caption[begin:end]
    blank = old[len(old.rstrip()) :] or ("" if end == len(caption) else " ")
    changed = caption[:begin] + foreign + blank + caption[end:]
    return changed, _sentence_at(changed, begin)


def with_added_detail(caption: str, other: str, rng: random.Random) -> tuple[str, int | None]:
    """Add a sentence of another caption: `added_detail` noise, the half truths of CS-CLIP.

    After several sentences it is appended; to a single one it is joined by "and". Returns the
    caption and the index of its foreign sentence; None if that is a part of the only one. A caption
    that already has all sentences of the other is unchanged.
    """
    foreign, text = _drawn_sentence(caption, other, rng), caption.rstrip()
    if foreign is None:
        return caption, None
    if len(sentence_starts(caption)) > 1:
        changed = f"{text} {foreign}"
        return changed, _sentence_at(changed, len(text) + 1)
    end = text[len(text.rstrip(".!")) :]
    detail = foreign.rstrip(".! ")
    if not detail.isupper():
        detail = detail[:1].lower() + detail[1:]
    return f"{text.rstrip('.!')} and {detail}{end}", None


def _drawn_sentence(caption: str, other: str, rng: random.Random) -> str | None:
    """Draw a sentence of another caption that this caption lacks."""
    sentences, other_sentences = (
        parts_of(text, sentence_starts(text)) for text in (caption, other)
    )
    foreign = [sentence for sentence in other_sentences if sentence not in sentences]
    return foreign[int(rng.random() * len(foreign))] if foreign else None


def _sentence_at(caption: str, place: int) -> int:
    """Find the sentence of the character at `place`: the inserted one may join another."""
    return bisect.bisect_right(sentence_starts(caption), place) - 1
