"""Make text from files safe to print: nothing in it moves the cursor, hides or reorders."""

from __future__ import annotations

import logging
import re

from ncclean.base.url_secrets import without_secrets

# Direction embeddings, overrides and isolates reorder following text, even beyond their own; the
# plain direction marks of Arabic and Hebrew do not. Escape codes rewrite a terminal. Other control
# characters are invisible or break the line. Lone surrogates, which names of files may have, cannot
# be printed at all.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Spell out control characters in a text (`⟨U+202E⟩`), except tabs and line ends."""
    return _CONTROLS.sub(lambda control: f"⟨U+{ord(control[0]):04X}⟩", text)


def message(text: str) -> str:
    """Prepare a message of ncclean for the terminal: no control characters, no secrets of URLs."""
    return visible(without_secrets(text))


class MessageFormatter(logging.Formatter):
    """Lines of a log as they may be printed; tracebacks keep their lines."""

    def format(self, record: logging.LogRecord) -> str:
        return message(super().format(record))
