"""Classes of words that an image shows: alternatives for one word of a caption.

Words of a class are interchangeable in a sentence: colours, numbers, animals. Words of one line
mean the same and never replace each other. ncclean bundles the list `word_classes.txt`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from ncclean.base.text_files import read_text
from ncclean.errors import InputError

# Scripts whose vowels are marks on the preceding letters.
_MARKS = "".join(chr(c) for c in range(0x300, 0x3100) if unicodedata.category(chr(c))[0] == "M")
_LETTER = rf"(?:[^\W_]|[{_MARKS}])"
# A hyphen binds: "red-eye" and "one-way" are words of their own.
WORD = re.compile(rf"(?<![\w'{_MARKS}-])[^\W_]{_LETTER}*(?:['-]{_LETTER}+)*")
_COMMENT = re.compile(r"(^|\s)#.*")
_LARGEST = 1 << 20  # bytes of a list of words
_VOWELS = "aeiou"

# Synonyms by form: singular, plural.
Meaning = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A word of a caption that belongs to a class: its position, its meaning, and its form."""

    start: int
    word: str
    word_class: str
    meaning: int
    form: int


@dataclass(frozen=True)
class WordClasses:
    """Classes of words by name, such as colours, each with its meanings.

    A word in several classes counts for the first.
    """

    classes: dict[str, list[Meaning]]

    @classmethod
    @functools.cache
    def bundled(cls) -> WordClasses:
        """Load the bundled word classes, `word_classes.txt`."""
        text = resources.files("ncclean.data").joinpath("word_classes.txt").read_text("utf-8")
        return cls.of_lines(text.splitlines())

    @classmethod
    def load(cls, path: str) -> WordClasses:
        """Load word classes from a file. Raises `InputError` if it cannot be read or holds none.

        A line `[name]` begins a class, and each further line is a meaning: words separated by
        spaces, their forms (singular, plural) by slashes. `#` after a blank begins a comment.
        """
        classes = cls.of_lines(read_text(path, _LARGEST).splitlines())
        lonely = [name for name, meanings in classes.classes.items() if len(meanings) < 2]
        if lonely or not classes.classes:
            what = f"the class [{lonely[0]}] has" if lonely else "it has"
            raise InputError(
                f"the word classes {path}: {what} no two meanings that could replace each other; "
                "a line `[name]` begins a class, each further line is a meaning"
            )
        return classes

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> WordClasses:
        """Parse word classes from lines of text; lines before the first heading have no class."""
        classes: dict[str, list[Meaning]] = {}
        name = ""
        for line in (line.strip() for line in lines):
            if line.startswith("["):
                name = line.strip("[] ")
                classes.setdefault(name, [])
            elif line := folded(_COMMENT.sub("", line)):
                forms = tuple(tuple(form.split()) for form in line.split("/"))
                classes.setdefault(name, []).append(forms)
        return cls(classes)

    def lines(self) -> Iterator[str]:
        """Return the classes as lines of text, which `of_lines` parses."""
        for name, meanings in self.classes.items():
            yield f"[{name}]"
            yield from ("/".join(map(" ".join, forms)) for forms in meanings)

    @functools.cached_property
    def entries(self) -> dict[str, Place]:
        """Map each lower-case word to its class, meaning and form."""
        entries: dict[str, Place] = {}
        for name, meanings in self.classes.items():
            for meaning, forms in enumerate(meanings):
                for form, words in enumerate(forms):
                    for word in words:
                        entries.setdefault(word, Place(0, word, name, meaning, form))
        return entries

    def places(self, caption: str) -> list[Place]:
        """Return the words of a caption that belong to a word class, in order."""
        places: list[Place] = []
        for match in WORD.finditer(caption):
            entry = self.entries.get(folded(match[0]))
            if entry is not None:
                places.append(
                    Place(match.start(), match[0], entry.word_class, entry.meaning, entry.form)
                )
        return places

    def others(self, place: Place) -> list[Sequence[str]]:
        """Return words that could replace a word: same class and form, another meaning.

        A word of several lines has the meaning of the first one.
        """
        same = {word for forms in self.classes[place.word_class][place.meaning] for word in forms}
        others = [
            tuple(word for word in forms[place.form] if word not in same)
            for forms in self.classes[place.word_class]
            if len(forms) > place.form
        ]
        return [words for words in others if words]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)


def folded(text: str) -> str:
    """Return a text in lower case and in the Unicode form of `WordClasses.entries`."""
    return unicodedata.normalize("NFC", text.lower())


def exchanged(caption: str, place: Place, word: str) -> str:
    """Return the caption with one word replaced by another.

    Case is kept, and "a" or "an" in front follows the new word.
    """
    word = cased(word, place)
    rest = caption[place.start + len(place.word) :]
    return _with_article(caption[: place.start], word) + word + rest


def cased(word: str, place: Place) -> str:
    """Return the new word in the case (`red`, `Red`, `RED`) of the one that it replaces."""
    if place.word.isupper() and len(place.word) > 1:
        return word.upper()
    return word[0].upper() + word[1:] if place.word[0].isupper() else word


def _with_article(before: str, word: str) -> str:
    """Return `before` with a final "a" or "an" that suits the following word."""
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
