"""Copy the card of a data set, its `README.md`, to an export."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import yaml
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.text_files import compose_yaml, read_text
from ncclean.errors import InputError
from ncclean.exporting.out_layout import PARQUET, OutLayout, Targets

CARD = "README.md"
_HEAD = re.compile(r"---\s*\n(.*?\n)---\s*(\n|$)", re.S)
# Fields by which `load_dataset` checks or finds the files, which differ now.
_COUNTS, _FILES = "dataset_info", "configs"


def exported_card(layout: OutLayout) -> str | None:
    """Return the dataset card beside the input, adapted to the output; None if there is none.

    Its `dataset_info` states sizes and columns of the original data set, and patterns find the
    files it names in Parquet; in other forms, the files have other names.
    """
    if not layout.root or not stores.present_files([stores.location(layout.root) / CARD]):
        return None
    try:
        text = read_text(f"{layout.root}/{CARD}")
    except (InputError, OSError):
        return None
    head = _HEAD.match(text)
    if head is None:
        return text
    try:
        compose_yaml(head[1], CARD)  # within limits: aliases may expand to anything
        fields = yaml.safe_load(head[1])
    except (yaml.YAMLError, InputError, ValueError):
        return text
    if not isinstance(fields, dict) or fields.keys().isdisjoint((_COUNTS, _FILES)):
        return text
    written = {name: value for name, value in fields.items() if name not in (_COUNTS, _FILES)}
    if layout.name == "parquet" and _FILES in fields:
        written[_FILES] = _with_patterns(fields[_FILES], layout)
    lines = yaml.safe_dump(written, sort_keys=False, allow_unicode=True) if written else ""
    return f"---\n{lines}---\n{text[head.end() :]}"


def _with_patterns(value: Any, layout: OutLayout) -> Any:
    """Replace each Parquet file in a card's value by a pattern: it may become several files."""
    if isinstance(value, dict):
        return {name: _with_patterns(inner, layout) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_patterns(inner, layout) for inner in value]
    is_file = isinstance(value, str) and value.endswith(PARQUET)
    if not is_file or "*" in value or "://" in value:
        return value
    group = layout.group_of_path(value)
    return f"{group}{'' if not group or group.endswith('/') else '-'}*{PARQUET}"


def card_digest(layout: OutLayout) -> str | None:
    """Return a digest of the dataset card of an output; None if there is none."""
    card = exported_card(layout)
    return None if card is None else _digest(card.encode())


def write_card(targets: Targets) -> None:
    """Write the dataset card beside the output, unless one is there."""
    card = exported_card(targets.layout)
    if card is not None and not stores.present_files([targets.out / CARD]):
        with published(targets.out / CARD) as aside:
            aside.write_text(card, encoding="utf-8")


def written_card(targets: Targets, digest: str | None) -> Iterator[UPath]:
    """Yield the dataset card of an output, if it is still the one that was written."""
    places = stores.present_files([targets.out / CARD]) if digest is not None else []
    yield from (place for place in places if _digest(stores.read_bytes(place)) == digest)


def _digest(card: bytes) -> str:
    return hashlib.blake2b(card, digest_size=16).hexdigest()
