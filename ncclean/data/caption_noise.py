"""Captions that are wrong: one word changed (`hard` noise), or boilerplate (`junk` noise).

`change_one_word` knows classes of English words that an image shows: colours, numbers, sizes,
places of one thing beside another, people, animals, and so on. It replaces one by another of its
class, so the caption stays a sentence and its only error is that word. Words of one line of
`word_classes.txt` mean the same and never replace one another. A caption without any of these words
cannot be changed.
"""

from __future__ import annotations

import random

from ncclean.data.word_classes import WordClasses, exchanged


def is_changeable(caption: str) -> bool:
    """Whether `change_one_word` can change the caption."""
    return bool(WordClasses.bundled().places(caption))


def change_one_word(caption: str, rng: random.Random) -> str | None:
    """The caption with one word replaced by another of its class, None if it has no such word.

    Case is kept, and so is singular or plural; "a" and "an" in front follow the new word.
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
    """Boilerplate and file names: the `junk` noise kind. Says nothing about any image."""
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
