"""Answers of a judge: a person with the page, or anybody's file of uids and answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ncclean.base.output_mark import mark
from ncclean.base.small_tables import read_rows
from ncclean.base.text_files import parse_json
from ncclean.errors import InputError

DESIGN = "audit_design"  # key of the metadata of Parquet files
ANSWERS = ("cannot tell", "match", "partly", "mismatch")  # by the keys 0, 1, 2, 3 of the page
Counts = Literal["match", "mismatch", "leave-out"]
Pair = tuple[str, int | None]  # uid and number of the caption, None where it is not said


@dataclass(frozen=True)
class Design:
    """The design of a sample: the strata's `bounds`, and the number of `pairs` in each.

    Of pairs drawn by a judge's answers, `judged` (S, 3) counts these by stratum.
    """

    bounds: np.ndarray
    pairs: np.ndarray
    judged: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """The design by name, without `judged` if there is none."""
        design = {"bounds": self.bounds.tolist(), "pairs": [int(count) for count in self.pairs]}
        if self.judged is not None:
            design["judged"] = [[int(count) for count in row] for row in self.judged]
        return design

    def is_same(self, other: Design) -> bool:
        """Whether samples of both designs are from the same strata."""
        same = zip((self.bounds, self.pairs), (other.bounds, other.pairs), strict=True)
        return all(np.array_equal(*pair) for pair in same)

    @classmethod
    def of(cls, fields: Any, path: str) -> Design:
        """Read the design of a sample from JSON. Raises `InputError` for other JSON."""
        try:
            judged = fields.get("judged")
            design = cls(
                np.array(fields["bounds"], float),
                np.array(fields["pairs"], np.int64),
                None if judged is None else np.array(judged, np.int64),
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path} does not say how the sample was drawn: {error}") from None
        if len(design.pairs) != len(design.bounds) + 1 or not (np.diff(design.bounds) > 0).all():
            raise InputError(f"{path} does not say how the sample was drawn: wrong bounds")
        if design.judged is not None and design.judged.shape != (len(design.pairs), 3):
            raise InputError(f"{path} does not say how the sample was drawn: wrong counts")
        return design


@dataclass(frozen=True)
class Answers:
    """The last answer on each pair; `repeated` counts those that a later one replaced."""

    by_pair: Mapping[Pair, str]
    design: Design | None
    repeated: int

    def digest(self) -> str:
        """A hash of the judged pairs and their answers."""
        lines = sorted(json.dumps([*pair, answer]) for pair, answer in self.by_pair.items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def key_of(self, uid: str, caption_number: int) -> Pair | None:
        """The key of a table row among the answers: uid and caption number, or the uid alone."""
        pairs: tuple[Pair, Pair] = ((uid, caption_number), (uid, None))
        return next((pair for pair in pairs if pair in self.by_pair), None)


def is_mismatched(answer: str, partly: Counts, cannot_tell: Counts) -> bool | None:
    """Whether an answer counts as a mismatch; None if the answer is left out."""
    counts = {"partly": partly, "cannot tell": cannot_tell}.get(answer, answer)
    return None if counts == "leave-out" else counts == "mismatch"


def read_answers(*paths: str) -> Answers:
    """Read answers: JSON, JSON lines, CSV or Parquet, of one file or several.

    Each has `uid` and `answer`, and `caption_number` if there are several. JSON is what the page
    saves, a list of objects, or an object of answers by uid. An answer is one of `ANSWERS`, in any
    case and with `_` or `-` for the blank, or its number. Of several designs the last one that
    counts a judge's answers is taken, else the first.

    Raises `InputError` for a file without answers or with others, and for samples that were drawn
    from different strata.
    """
    by_pair: dict[Pair, str] = {}
    design = None
    count = 0
    for path in paths:
        rows, own = _rows(path)
        before = count
        for number, row in enumerate(rows, start=1):
            pair, answer = _row(row, f"{path}, answer {number}")
            if answer is None:
                continue  # a line that waits for the judge
            by_pair[pair] = answer
            count += 1
        if count == before:
            raise InputError(f"{path} has no answers: it takes a uid and an answer for each pair")
        if own is not None and design is not None and not own.is_same(design):
            raise InputError(f"{path} and {paths[0]} are on samples of different strata")
        if design is None or (own is not None and own.judged is not None):
            design = own
    return Answers(by_pair, design, count - len(by_pair))


def _rows(path: str) -> tuple[Iterable[Any], Design | None]:
    """The rows of a file, and the design that it states."""
    rows, facts = read_rows(path, ("uid", "answer"), ("caption_number",), what="answers")
    if facts.get("made_by") == mark("review"):
        raise InputError(
            f"{path} has decisions of `ncclean review`, not answers: people review suspects, "
            "which say nothing about the other pairs. Audit a random sample"
        )
    design = parse_json(facts.get(DESIGN, "null"), path)
    if rows == [facts]:  # an object of JSON
        rows, design = facts.get("answers", facts), facts.get("design")
    if isinstance(rows, dict):
        rows = [{"uid": uid, "answer": answer} for uid, answer in rows.items()]
    return rows, Design.of(design, path) if design else None


def _row(row: Any, place: str) -> tuple[Pair, str | None]:
    if not isinstance(row, Mapping) or not row.get("uid") or "answer" not in row:
        raise InputError(f"{place}: an answer needs `uid` and `answer`, got {_short(row)}")
    number = row.get("caption_number")
    try:
        caption = None if number in (None, "") else int(number)
    except (TypeError, ValueError):
        raise InputError(
            f"{place}: caption_number must be an integer, got {_short(number)}"
        ) from None
    answer = row["answer"]
    if answer is None or answer == "":
        return (str(row["uid"]), caption), None
    word = str(answer).strip().lower().replace("_", " ").replace("-", " ")
    if word in ("0", "1", "2", "3"):
        word = ANSWERS[int(word)]
    if isinstance(answer, bool) or word not in ANSWERS:
        raise InputError(f"{place}: answer takes {', '.join(ANSWERS)}, got {_short(answer)}")
    return (str(row["uid"]), caption), word


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
