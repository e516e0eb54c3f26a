"""Untrusted captions as plain text that is safe to show."""

from __future__ import annotations

import re

from ncclean.base.visible_text import visible

_SPACES = re.compile(r"[ \t\n]+")


def shown_text(text: str, most_bytes: int) -> tuple[str, int]:
    """Cut a caption to about `most_bytes` of UTF-8; returns how many characters are left out, too.

    Control characters, such as those that reverse the direction of writing, become visible
    (`⟨U+202E⟩`). Runs of white space become one blank.
    """
    # Cut first: a caption may have a megabyte.
    head = text[: 2 * most_bytes]
    head = _SPACES.sub(" ", head).strip()
    pieces, size, taken = [], 0, 0
    for character in head:
        piece = visible(character)
        size += len(piece.encode("utf-8", "replace"))
        if size > most_bytes:
            break
        pieces.append(piece)
        taken += 1
    left_out = len(head) - taken + max(len(text) - 2 * most_bytes, 0)
    return "".join(pieces), left_out
