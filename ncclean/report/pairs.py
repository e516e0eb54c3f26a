"""Choose the pairs that a report shows, and the causes with their examples, made safe to show.

Pairs are the worst, the borderline, the almost right ones, the best, and some that failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ncclean.base.rules import REPORTED
from ncclean.explaining.cause_table import Cause
from ncclean.report.formats import shown_text
from ncclean.report.table import ScoreTable
from ncclean.report.thumbnails import Pictured
from ncclean.storage.joined import PLACE
from ncclean.storage.quoting import identifier

_TIES = f"shard, row, caption_number, {PLACE}"  # in two tables, shards may share names
GROUPS = ("worst", "borderline", "wrong sentence", "almost right", "best", "failed")
_LONGEST_CAPTION = 2000  # bytes
_ALL_CAPTIONS = 700_000  # bytes; the page has 5 MB for everything
_LONGEST_NAME = 300
_LONGEST_KIND = 16
_READ_CHARACTERS = 4 * _LONGEST_CAPTION
# A borderline pair is neither clearly matched nor clearly mismatched.
BORDERLINE = "noise_probability BETWEEN 0.02 AND 0.98"
# Matched except for a word that `--words` found.
ALMOST = "noise_probability < 0.5 AND near_miss_probability >= 0.5 AND suspect_word IS NOT NULL"
# Matched except for a sentence that `--caption-parts` found.
WRONG_SENTENCE = (
    "noise_probability < 0.5 AND part_noise_probability >= 0.5 AND len(part_starts) > 1"
)
_PARTS = "part_starts, part_noise_probabilities"
_SHOWN_SCORES = (
    "noise_probability",
    "similarity",
    "null_p_value",
    "neg_clip_loss",
    "ncu_confidence",
    "ncu_split",
    "disncl_clean",
    "osa_weight",
    "osa_noisy",
    "clean_posterior",
    "i2t_rank",
    "t2i_rank",
    "block",
    "part_noise_probability",
    "worst_part_similarity",
    "mean_part_similarity",
    "part_count",
    "near_miss_probability",
    "near_miss_score",
    "word_margin",
    "suspect_word",
    "better_word",
    "is_noisy",
    "noise_kind",
)
MOST_CARDS = 20
_LONGEST_LABEL, _LONGEST_EXAMPLE, _LONGEST_SQL = 120, 400, 2000  # bytes
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


@dataclass(frozen=True, kw_only=True)
class ShownPair(Pictured):
    """A pair as a page shows it, with its text made safe; `scores` are those with a value.

    `pieces` are the caption's parts, each with whether it is probably wrong.
    """

    group: str
    pieces: tuple[tuple[str, bool], ...]
    caption_left_out: int  # characters
    url: str | None
    width: int | None
    height: int | None
    scores: dict[str, float | int | str | bool]
    flags: tuple[str, ...] = field(default=())  # names of the rules that flag it
    uid: str = ""
    caption_number: int = 0
    further: dict[str, float | int | str | bool] = field(default_factory=dict)  # see `ScoreTable`

    @property
    def caption(self) -> str:
        return " ".join(text for text, _ in self.pieces)

    @property
    def noise_probability(self) -> float | None:
        value = self.scores.get("noise_probability")
        return float(value) if value is not None else None

    @property
    def words(self) -> tuple[str, str] | None:
        """The probably wrong word of the caption and a better one; see `proposed_words`."""
        return proposed_words(self.scores)

    @property
    def truth(self) -> str | None:
        """The ground truth: `clean`, the kind of noise, or `noisy` if that is unknown, or None."""
        if "is_noisy" not in self.scores:
            return None
        kind = str(self.scores.get("noise_kind") or "noisy")
        return kind[:_LONGEST_KIND] if self.scores["is_noisy"] else "clean"


def choose_pairs(table: ScoreTable, per_group: int) -> tuple[ShownPair, ...]:
    """Choose at most `per_group` pairs of the worst, borderline and best, the same every time.

    No pair is chosen twice. A noise probability of one half separates the worst from the best.
    Without noise probabilities, the cosine orders the pairs and none is borderline.
    """
    if per_group == 0:
        return ()
    calibrated = table.rows("SELECT count(noise_probability) FROM pairs WHERE status = 'ok'")[0][0]
    chosen: dict[int, str] = {}  # groups by place

    def take(group: str, condition: str, order: str, most: int) -> None:
        # Places first: captions are read only for the chosen pairs.
        places = table.rows(
            f"SELECT {PLACE} FROM pairs WHERE {condition} ORDER BY {order}, {_TIES} "
            f"LIMIT {most + len(chosen)}"
        )
        new = [place for (place,) in places if place not in chosen]
        chosen.update((place, group) for place in new[:most])

    if calibrated:
        take("worst", "noise_probability >= 0.5", "noise_probability DESC, similarity", per_group)
        take("wrong sentence", WRONG_SENTENCE, "part_noise_probability DESC", per_group)
        take("almost right", ALMOST, "near_miss_probability DESC, near_miss_score", per_group)
        take("best", "noise_probability < 0.5", "noise_probability, similarity DESC", per_group)
        take("borderline", BORDERLINE, "abs(noise_probability - 0.5)", per_group)
    else:
        scored = table.rows("SELECT count(*) FROM pairs WHERE status = 'ok'")[0][0]
        take("worst", "status = 'ok'", "similarity", min(per_group, scored // 2))
        take("best", "status = 'ok'", "similarity DESC", per_group)
    statuses = table.rows(
        "SELECT DISTINCT status FROM pairs WHERE status <> 'ok' ORDER BY status LIMIT 100"
    )
    for (status,) in statuses:
        quoted = status.replace("'", "''")
        take("failed", f"status = '{quoted}'", "1", -(-per_group // len(statuses)))
    return tuple(_read(table, chosen))


def _read(table: ScoreTable, chosen: dict[int, str]) -> list[ShownPair]:
    """Read the chosen pairs by group, and within a group in the order of the choice."""
    if not chosen:
        return []
    caption_bytes = max(200, min(_LONGEST_CAPTION, _ALL_CAPTIONS // len(chosen)))
    conditions = ", ".join(f"coalesce({rule.condition}, false)" for rule in REPORTED)
    values = table.rows(
        f"SELECT {PLACE}, shard, row, caption_number, key, status, left(error, 300), "
        f"left(text, {_READ_CHARACTERS}), length(text), left(url, {_LONGEST_NAME}), "
        f"width, height, {_PARTS}, {', '.join(_SHOWN_SCORES)}, {conditions}, uid"
        f"{''.join(f', {identifier(name)}' for name in table.further)} FROM pairs "
        f"WHERE list_contains(?, {PLACE})",
        [[*chosen]],
    )
    by_place = {place: row for place, *row in values}
    joined = _joined_scores(table, [*chosen])
    pairs = [
        _pair(group, by_place[place], joined.get(place, {}), table.further, caption_bytes)
        for place, group in chosen.items()
    ]
    return sorted(pairs, key=lambda pair: GROUPS.index(pair.group))


def _joined_scores(table: ScoreTable, places: list[int]) -> dict[int, dict[str, object]]:
    """The scores of joined tables."""
    names = list(table.joined_scores)
    if not names:
        return {}
    values = table.rows(
        f"SELECT {PLACE}, {', '.join(map(identifier, names))} FROM joined_pairs "
        f"WHERE list_contains(?, {PLACE})",
        [places],
    )
    return {place: dict(zip(names, row, strict=True)) for place, *row in values}


def _pair(
    group: str,
    row: Sequence[object],
    joined: dict[str, object],
    further: Sequence[str],
    caption_bytes: int,
) -> ShownPair:
    (
        shard,
        number,
        caption_number,
        key,
        status,
        error,
        text,
        length,
        url,
        width,
        height,
        starts,
        noise,
    ) = row[:13]
    ends = np.cumsum([13, len(_SHOWN_SCORES), len(REPORTED)]).tolist()
    values, flags = row[ends[0] : ends[1]], row[ends[1] : ends[2]]
    uid, *further_values = row[ends[2] :]
    pieces, left_out = caption_pieces(str(text or ""), starts, noise, caption_bytes)
    if text is not None and isinstance(length, int):
        left_out += length - len(str(text))
    return ShownPair(
        group=group,
        shard=str(shard),
        key=str(key),
        row=int(str(number)),
        status=str(status),
        error=shown_text(error, 400)[0] if isinstance(error, str) else None,
        pieces=pieces,
        caption_left_out=left_out,
        url=shown_text(url, _LONGEST_NAME)[0] if isinstance(url, str) and url else None,
        width=width if isinstance(width, int) else None,
        height=height if isinstance(height, int) else None,
        scores=_values((*zip(_SHOWN_SCORES, values, strict=True), *joined.items())),
        flags=tuple(rule.name for rule, flag in zip(REPORTED, flags, strict=True) if flag),
        uid=str(uid),
        caption_number=caption_number if isinstance(caption_number, int) else 0,
        further=_values(zip(further, further_values, strict=True)),
    )


def _values(named: Iterable[tuple[str, object]]) -> dict[str, float | int | str | bool]:
    """Return the existing values, with texts made safe."""
    return {
        name: shown_text(value, _LONGEST_NAME)[0] if isinstance(value, str) else value
        for name, value in named
        if isinstance(value, (float, int, str, bool))
    }


def proposed_words(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the probably wrong word of a caption, and a better one; None without a proposal.

    None if the caption is wholly wrong, which one better word would not mend; if it is probably
    right; and if the model cannot tell words: `near_miss_probability` is null.
    """
    suspect, better = row.get("suspect_word"), row.get("better_word")
    is_wrong = (row.get("noise_probability") or 0.0) >= 0.5
    is_near_miss = (row.get("near_miss_probability", 1.0) or 0.0) >= 0.5
    if is_wrong or not is_near_miss or not (suspect and better):
        return None
    return (suspect, better) if isinstance(suspect, str) and isinstance(better, str) else None


def caption_parts(starts: object, noise: object) -> tuple[list[int], list[bool]]:
    """Return the starts of the parts of a caption, and whether each is probably wrong.

    The table is untrusted: invalid parts become a single part.
    """
    if not (isinstance(starts, list) and isinstance(noise, list) and len(starts) == len(noise)):
        return [0], [False]
    are_numbers = all(isinstance(start, int) and start >= 0 for start in starts)
    if not are_numbers or starts[:1] != [0] or starts != sorted(set(starts)):
        return [0], [False]
    return starts, [isinstance(p, float) and p >= 0.5 for p in noise]


def caption_pieces(
    text: str, starts: object, noise: object, most_bytes: int
) -> tuple[tuple[tuple[str, bool], ...], int]:
    """Return the parts of a caption made safe, cut to about `most_bytes`, and the characters cut.

    The second is their number.
    """
    starts, wrong = caption_parts(starts, noise)
    pieces, left_out = [], 0
    for (start, end), is_wrong in zip(pairwise([*starts, len(text)]), wrong, strict=True):
        piece, cut = (
            shown_text(text[start:end], max(most_bytes, 0)) if start < len(text) else ("", 0)
        )
        most_bytes -= len(piece.encode("utf-8", "replace")) + 1
        left_out += cut
        if piece:
            pieces.append((piece, is_wrong))
    return tuple(pieces), left_out


@dataclass(frozen=True, kw_only=True)
class ShownExample(Pictured):
    """An example of a cause, as a report shows it."""

    caption: str
    left_out: int  # characters


@dataclass(frozen=True)
class CauseCard:
    """A cause as a report shows it; all text but the label and value of `cause` is made safe."""

    cause: Cause
    title: str
    verb: str
    examples: tuple[ShownExample, ...]
    folded: tuple[str, ...]


def cards_of(causes: Sequence[Cause]) -> tuple[CauseCard, ...]:
    """Return cards of the first causes, then of the first groups where the estimator may be worse.

    Each names some groups folded into it.
    """
    folded: dict[int, list[str]] = {}
    for cause in causes:
        if cause.folded_into is not None:
            folded.setdefault(cause.folded_into, []).append(_title(cause))
    listed = [cause for cause in causes if cause.folded_into is None]
    first = [
        cause
        for is_cause in (True, False)
        for cause in [cause for cause in listed if cause.is_cause == is_cause][:MOST_CARDS]
    ]
    return tuple(_card(cause, folded.get(cause.number, [])) for cause in first)


def _title(cause: Cause) -> str:
    label = shown_text(cause.label, _LONGEST_LABEL)[0]
    group = _GROUPS.get(cause.kind)
    return group.format(label) if group else f"{shown_text(cause.kind, 60)[0]}: {label}"


def _card(cause: Cause, folded: list[str]) -> CauseCard:
    examples = []
    for example in cause.examples[:_EXAMPLES]:
        caption, left_out = shown_text(example.caption or "", _LONGEST_EXAMPLE)
        examples.append(
            ShownExample(
                shard=example.shard,
                key=example.key or "",
                row=example.row,
                caption=caption,
                left_out=left_out,
            )
        )
    safe = dataclasses.replace(
        cause,
        condition=shown_text(cause.condition, _LONGEST_SQL)[0],
        join=shown_text(cause.join, _LONGEST_LABEL)[0] if cause.join else None,
        proposal=shown_text(cause.proposal, _LONGEST_EXAMPLE)[0] if cause.proposal else None,
    )
    verb = _OUTCOMES.get(cause.outcome, "are wrong")
    return CauseCard(safe, _title(cause), verb, tuple(examples), tuple(folded[:_EXAMPLES]))
