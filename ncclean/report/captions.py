"""Captions are hostile: what may be shown of one, as plain text."""

from __future__ import annotations

import re

# Embeddings, overrides and isolates reorder what follows them, beyond the caption itself; the
# plain direction marks that Arabic and Hebrew use do not. Other controls show as nothing, or as
# a line break where none belongs.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SPACES = re.compile(r"[ \t\n]+")


def shown_text(text: str, most_bytes: int) -> tuple[str, int]:
    """What to show of a text in at most about `most_bytes` of UTF-8, and how much is left out.

    Control characters, those that turn the direction of writing among them, become visible
    (`⟨U+202E⟩`); runs of white space become one blank. The second value counts characters.
    """
    # Ahead of everything else: a caption may have a megabyte.
    head = text[: 2 * most_bytes]
    head = _SPACES.sub(" ", head).strip()
    pieces, size, taken = [], 0, 0
    for character in head:
        piece = _visible(character)
        size += len(piece.encode("utf-8", "replace"))
        if size > most_bytes:
            break
        pieces.append(piece)
        taken += 1
    left_out = len(head) - taken + max(len(text) - 2 * most_bytes, 0)
    return "".join(pieces), left_out


def _visible(character: str) -> str:
    if _CONTROLS.match(character):
        return f"⟨U+{ord(character):04X}⟩"
    return character
