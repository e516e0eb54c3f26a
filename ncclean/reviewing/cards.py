"""Prepare a row for the page: make text safe, mark errors, and propose a correction."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ncclean.report.formats import shown_text
from ncclean.report.pairs import caption_parts, caption_pieces, proposed_words

_SHOWN_BYTES = 2_000
_EDITED_CHARACTERS = 20_000
_LONGEST_NAME = 300
_SCORES = (
    "noise_probability", "similarity", "near_miss_probability", "part_noise_probability",
    "better_captions", "better_images", "is_noisy", "noise_kind",
)  # fmt: skip
_GROUPS = ("pair_group", "image_group")


def card_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a pair's card on the page; texts in it are to be shown as plain text."""
    text = row["text"] if isinstance(row["text"], str) else ""
    pieces, left_out = caption_pieces(
        text[: 4 * _SHOWN_BYTES], row["part_starts"], row["part_noise_probabilities"], _SHOWN_BYTES
    )
    proposed = proposed_words(row)
    words = [shown_text(word, 100)[0] for word in proposed] if proposed else None
    marked = [piece for text_, is_wrong in pieces for piece in _marked(text_, is_wrong, words)]
    return {
        "uid": row["uid"],
        "number": row["caption_number"],
        "shard": row["shard"],
        "key": row["key"],
        "file": file_of(row),
        "status": shown_text(str(row["status"]), 100)[0],
        "error": _short(row["error"]),
        "pieces": marked,
        "leftOut": left_out + max(len(text) - 4 * _SHOWN_BYTES, 0),
        "text": text[:_EDITED_CHARACTERS],
        "isWhole": len(text) <= _EDITED_CHARACTERS,
        "words": words,
        "mended": mended_caption(row),
        "group": next((_short(row[name]) for name in _GROUPS if row[name]), None),
        "scores": {name: _value(row[name]) for name in _SCORES if row[name] is not None},
    }


def file_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return folder and name of a row's image; the folder is the shard or starts with it."""
    folder, _, name = f"{row['shard']}/{row['image_path'] or row['key']}".rpartition("/")
    return _short(folder) or "", _short(name) or ""


def mended_caption(row: Mapping[str, Any]) -> str | None:
    """Return a proposal for a wrong caption: without wrong sentences, or with the better word.

    None if there is none. Wrong sentences have priority, as in the selection's `--drop-parts`:
    those with a probability of at least one half are removed, else the worst part.
    """
    text = row["text"]
    if not isinstance(text, str):
        return None
    parts = _without_wrong_parts(row, text)
    if parts is not None:
        return parts
    proposed = proposed_words(row)
    if proposed is None:
        return None
    suspect, better = proposed
    match = _word(text, suspect)
    if match is None:
        return None
    if match[0][:1].isupper():
        better = better[:1].upper() + better[1:]
    start, end = match.span()
    return f"{text[:start]}{better}{text[end:]}"


def _without_wrong_parts(row: Mapping[str, Any], text: str) -> str | None:
    starts, wrong = caption_parts(row["part_starts"], row["part_noise_probabilities"])
    if len(starts) < 2:
        return None
    if not any(wrong) and (row["part_noise_probability"] or 0.0) >= 0.5:
        worst = row["worst_part_number"]
        wrong = [number == worst for number in range(len(starts))]
    ends = pairwise([*starts, len(text)])
    pieces = [text[a:b] for (a, b), is_wrong in zip(ends, wrong, strict=True) if not is_wrong]
    mended = "".join(pieces).strip()
    return mended if mended and len(pieces) < len(starts) else None


def _word(text: str, word: str) -> re.Match[str] | None:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)


def _marked(piece: str, is_wrong: bool, words: list[str] | None) -> list[tuple[str, str]]:
    """Split texts, each marked as `part`, `word` or not at all."""
    kind = "part" if is_wrong else ""
    match = _word(piece, words[0]) if words is not None else None
    if match is None:
        return [(piece, kind)]
    start, end = match.span()
    split = [(piece[:start], kind), (piece[start:end], "word"), (piece[end:], kind)]
    return [(text, mark) for text, mark in split if text]


def _short(value: object) -> str | None:
    return shown_text(value, _LONGEST_NAME)[0] if isinstance(value, str) and value else None


def _value(value: object) -> object:
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return _short(value) if isinstance(value, str) else value
