"""Captions that are wrong: one word changed (`hard` noise), or boilerplate (`junk` noise).

`change_one_word` knows classes of English words that an image shows: colours, numbers, sizes,
places of one thing beside another, people, animals, and so on. It replaces one by another of its
class, so the caption stays a sentence and its only error is that word. Words of one line of
`word_classes.txt` mean the same and never replace one another. A caption without any of these words
cannot be changed.
"""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass
from importlib import resources

# A hyphen binds: "red-eye" and "one-way" are words of their own.
_WORD = re.compile(r"(?<![\w'-])[^\W_]+(?:['-][^\W_]+)*")
_VOWELS = "aeiou"


@dataclass(frozen=True, slots=True)
class _Entry:
    """Place of a word: its class, the meaning within the class, and its form (0 singular)."""

    word_class: str
    meaning: int
    form: int


def is_changeable(caption: str) -> bool:
    """Whether `change_one_word` can change the caption."""
    return any(match[0].lower() in _entries() for match in _WORD.finditer(caption))


def change_one_word(caption: str, rng: random.Random) -> str | None:
    """The caption with one word replaced by another of its class, None if it has no such word.

    Case is kept, and so is singular or plural; "a" and "an" in front follow the new word.
    """
    entries = _entries()
    matches = [match for match in _WORD.finditer(caption) if match[0].lower() in entries]
    if not matches:
        return None
    match = matches[int(rng.random() * len(matches))]
    entry = entries[match[0].lower()]
    others = [
        forms
        for meaning, forms in enumerate(_classes()[entry.word_class])
        if meaning != entry.meaning and len(forms) > entry.form
    ]
    choices = others[int(rng.random() * len(others))][entry.form]
    word = _with_case_of(match[0], choices[int(rng.random() * len(choices))])
    return _article(caption[: match.start()], word) + word + caption[match.end() :]


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


def _with_case_of(old: str, new: str) -> str:
    if old.isupper() and len(old) > 1:
        return new.upper()
    return new[0].upper() + new[1:] if old[0].isupper() else new


def _article(before: str, word: str) -> str:
    """`before` with a final "a" or "an" that suits the word which follows."""
    match = re.search(r"(?<![\w'-])(a|an)(\s+)\Z", before, re.IGNORECASE)
    if match is None or not word[0].isalpha():
        return before
    fitting = "an" if word[0].lower() in _VOWELS else "a"
    if match[1].lower() == fitting:
        return before
    article = fitting.upper() if match[1].isupper() and word.isupper() else fitting
    if match[1][0].isupper():
        article = article[0].upper() + article[1:]
    return before[: match.start()] + article + match[2]


@functools.cache
def _classes() -> dict[str, list[tuple[tuple[str, ...], ...]]]:
    """Class -> meanings -> forms (singular, plural) -> words that are used alike."""
    text = resources.files("ncclean.data").joinpath("word_classes.txt").read_text("utf-8")
    classes: dict[str, list[tuple[tuple[str, ...], ...]]] = {}
    current: list[tuple[tuple[str, ...], ...]] = []
    for line in text.splitlines():
        if line.startswith("["):
            current = classes.setdefault(line.strip("[] "), [])
        elif line.strip() and not line.startswith("#"):
            forms = line.split("/")
            current.append(tuple(tuple(form.split()) for form in forms))
    return classes


@functools.cache
def _entries() -> dict[str, _Entry]:
    """Word -> its place. A word of several classes counts for the first."""
    entries: dict[str, _Entry] = {}
    for word_class, meanings in _classes().items():
        for meaning, forms in enumerate(meanings):
            for form, words in enumerate(forms):
                for word in words:
                    entries.setdefault(word, _Entry(word_class, meaning, form))
    return entries
