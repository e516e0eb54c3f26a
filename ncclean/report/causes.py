"""The causes of a report: what `ncclean explain` found, with pictures, made safe to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclean.base.estimates import Estimate
from ncclean.explaining.cause_table import Cause
from ncclean.report.captions import shown_text

MOST_CARDS = 20
_LONGEST_LABEL, _LONGEST_CAPTION, _LONGEST_SQL = 120, 400, 2000  # bytes
_EXAMPLES = 6
# A group in words, by its kind; others are a name and a value.
_GROUPS = {
    "word": "Captions with the word “{}”",
    "phrase": "Captions with “{}”",
    "host": "Images from {}",
    "folder of the url": "Images from {}",
    "ending of the url": "Files that end in .{}",
    "shape of the caption": "Captions of the shape “{}”",
    "length of the caption": "Captions of {}",
    "image size": "Images of {} pixels",
    "word in a cluster": "Captions with {}",
    "word in a region": "Captions with {}",
    "exchanged words": "Captions with {}, each for the other",
    "language": "Captions in {}",
    "shard": "Shard {}",
}
_OUTCOMES = {
    "mismatch": "are mismatched",
    "near miss": "have a wrong word",
    "wrong sentence": "have a wrong sentence",
}


@dataclass(frozen=True)
class ShownExample:
    """An example as `read_thumbnails` and the page take it."""

    shard: str
    key: str
    row: int
    caption: str
    left_out: int
    status: str = "ok"
    error: str | None = None


@dataclass(frozen=True)
class CauseCard:
    """One cause, with text made safe."""

    number: int
    is_cause: bool
    title: str
    verb: str
    pairs: int
    rate: Estimate
    is_rate_known: bool
    outside: Estimate
    excess: float
    condition: str
    join: str | None
    proposal: str | None
    examples: tuple[ShownExample, ...]
    folded: tuple[str, ...]


def cards_of(causes: Sequence[Cause]) -> tuple[CauseCard, ...]:
    """Cards of the first causes, then of the first groups that may only be read worse.

    Each names some groups that are folded into it.
    """
    folded: dict[int, list[str]] = {}
    for cause in causes:
        if cause.folded_into is not None:
            folded.setdefault(cause.folded_into, []).append(_title(cause))
    listed = [cause for cause in causes if cause.folded_into is None]
    shown = [
        cause
        for is_cause in (True, False)
        for cause in [one for one in listed if one.is_cause == is_cause][:MOST_CARDS]
    ]
    return tuple(_card(cause, folded.get(cause.number, [])) for cause in shown)


def _title(cause: Cause) -> str:
    label = shown_text(cause.label, _LONGEST_LABEL)[0]
    group = _GROUPS.get(cause.kind)
    return group.format(label) if group else f"{shown_text(cause.kind, 60)[0]}: {label}"


def _card(cause: Cause, folded: list[str]) -> CauseCard:
    examples = []
    for example in cause.examples[:_EXAMPLES]:
        caption, left_out = shown_text(example.caption or "", _LONGEST_CAPTION)
        examples.append(
            ShownExample(example.shard, example.key or "", example.row, caption, left_out)
        )
    return CauseCard(
        number=cause.number,
        is_cause=cause.is_cause,
        title=_title(cause),
        verb=_OUTCOMES.get(cause.outcome, "are wrong"),
        pairs=cause.pairs,
        rate=cause.rate,
        is_rate_known=cause.is_rate_known,
        outside=cause.outside,
        excess=cause.excess,
        condition=shown_text(cause.condition, _LONGEST_SQL)[0],
        join=shown_text(cause.join, _LONGEST_LABEL)[0] if cause.join else None,
        proposal=shown_text(cause.proposal, _LONGEST_CAPTION)[0] if cause.proposal else None,
        examples=tuple(examples),
        folded=tuple(folded[:_EXAMPLES]),
    )
