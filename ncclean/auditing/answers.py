"""Read the answers of a judge: a person with the page, or any file of uids and answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ncclean.auditing.intervals import Cells
from ncclean.auditing.two_phase import NEITHER
from ncclean.base.output_mark import mark
from ncclean.base.small_tables import read_rows
from ncclean.base.text_files import parse_json
from ncclean.errors import InputError

DESIGN = "audit_design"  # metadata key in Parquet files
TEXT = "text"  # column of a pair's caption in sample.parquet, which other programs may keep
ANSWERS = ("cannot tell", "match", "partly", "mismatch")  # by the keys 0, 1, 2, 3 of the page
Counts = Literal["match", "mismatch", "leave-out"]
Pair = tuple[str, int | None]  # uid and number of the caption, None if not stated


@dataclass(frozen=True)
class Design:
    """The design of a stratified sample: the strata's `bounds`, and the number of `pairs` in each.

    The strata are ranges of the noise probability. If a judge's answers guided the draw, `judged`
    (S, 3) counts these by stratum.
    """

    bounds: np.ndarray
    pairs: np.ndarray
    judged: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the design by field name, without `judged` if there is none."""
        design = {"bounds": self.bounds.tolist(), "pairs": [int(count) for count in self.pairs]}
        if self.judged is not None:
            design["judged"] = [[int(count) for count in row] for row in self.judged]
        return design

    def is_same(self, other: Design) -> bool:
        """Check whether two samples were drawn from the same strata."""
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
    """The last answer on each pair; `repeated` counts answers that a later one replaced.

    `design` is that of the sample, None if unknown. `texts` are the captions that were judged, of
    those pairs for which the files have them.
    """

    by_pair: Mapping[Pair, str]
    design: Design | None
    repeated: int
    texts: Mapping[Pair, str] = field(default_factory=dict)

    def digest(self) -> str:
        """Return a hash of the judged pairs and their answers."""
        lines = sorted(json.dumps([*pair, answer]) for pair, answer in self.by_pair.items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def key_of(self, uid: str, caption_number: int) -> Pair | None:
        """Return the key of a table's row among the answers: uid with caption number, or uid alone.

        None if it has no answer.
        """
        pairs: tuple[Pair, Pair] = ((uid, caption_number), (uid, None))
        return next((pair for pair in pairs if pair in self.by_pair), None)


def is_mismatched(answer: str, partly: Counts, cannot_tell: Counts) -> bool | None:
    """Check whether an answer counts as a mismatch; None if the answer is left out."""
    counts = {"partly": partly, "cannot tell": cannot_tell}.get(answer, answer)
    return None if counts == "leave-out" else counts == "mismatch"


def read_answers(*paths: str) -> Answers:
    """Read answers from one or several files: JSON, JSON lines, CSV or Parquet.

    Each has `uid` and `answer`, `caption_number` if there are several, and may have `text`. JSON is
    the page's list of objects, or an object of answers by uid. An answer is one of `ANSWERS`, in
    any case and with `_` or `-` for the blank, or its number. Among several designs, the last that
    counts a judge's answers is used, else the first.

    Raises `InputError` for a file without answers or with invalid ones, and for samples drawn from
    different strata.
    """
    by_pair: dict[Pair, str] = {}
    texts: dict[Pair, str] = {}
    design = None
    count = 0
    for path in paths:
        rows, own = _rows(path)
        before = count
        for number, row in enumerate(rows, start=1):
            pair, answer = _row(row, f"{path}, answer {number}")
            if answer is None:
                continue  # a line with an unanswered pair
            by_pair[pair] = answer
            texts.pop(pair, None)  # of an answer that this one replaces
            if isinstance(text := row.get(TEXT), str) and text:
                texts[pair] = text
            count += 1
        if count == before:
            raise InputError(f"{path} has no answers: it takes a uid and an answer for each pair")
        if own is not None and design is not None and not own.is_same(design):
            raise InputError(f"{path} and {paths[0]} are on samples of different strata")
        if design is None or (own is not None and own.judged is not None):
            design = own
    return Answers(by_pair, design, count - len(by_pair), texts)


def _rows(path: str) -> tuple[Iterable[Any], Design | None]:
    """Return the rows of a file, and the design that it states."""
    rows, facts = read_rows(path, ("uid", "answer"), ("caption_number", TEXT), what="answers")
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
    # pandas stores integers with gaps as floats, and gaps as NaN.
    columns = (row.get("caption_number"), row["answer"])
    number, answer = (None if value != value else value for value in columns)
    try:
        caption = None if number in (None, "") else _whole(number)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{place}: caption_number must be an integer, got {_short(number)}"
        ) from None
    if answer is None or answer == "":
        return (str(row["uid"]), caption), None
    word = str(answer).strip().lower().replace("_", " ").replace("-", " ").removesuffix(".0")
    if word in ("0", "1", "2", "3"):
        word = ANSWERS[int(word)]
    if isinstance(answer, bool) or word not in ANSWERS:
        raise InputError(f"{place}: answer takes {', '.join(ANSWERS)}, got {_short(answer)}")
    return (str(row["uid"]), caption), word


def _whole(value: Any) -> int:
    number = float(value)
    if not number.is_integer():
        raise ValueError(f"{number} is not an integer")
    return int(number)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True)
class Answered:
    """The n answers that people gave: the stratum of each, and whether it says mismatched.

    `stratum` (n,) counts from 0 to `strata` - 1, `mismatched` (n,) is 0 or 1. `judge` (n,) is the
    answer of a judge, such as a model, on the same pair, -1 if it has none; None without a judge.
    `drawn_by_judge` tells that the pairs were drawn by the judge's answers.
    """

    strata: int
    stratum: np.ndarray
    mismatched: np.ndarray
    judge: np.ndarray | None
    drawn_by_judge: bool

    def cells(self, among: np.ndarray, pairs: np.ndarray, judged: np.ndarray) -> Cells:
        """Return the counts by stratum, from which R figures are estimated.

        `among` (R, n) tells which answers count for each figure, `pairs` (R, S) are the pairs of
        the corpus in each of S strata, and `judged` (R, S, 3) those with each answer of the judge.
        Pairs that people answered and the judge did not count as judged, with neither answer.
        """
        if self.judge is None:
            return Cells(pairs, self._counts(among), self._counts(among, self.mismatched))
        answers = self._counts(among)
        judged = judged.astype(float)
        judged[..., NEITHER] += self._counts(among & (self.judge < 0))[..., NEITHER]
        mismatched = self._counts(among, self.mismatched)
        return Cells(pairs, answers, mismatched, judged, self.drawn_by_judge)

    def weights(self, whole: Cells, with_judge: bool) -> np.ndarray:
        """Return (n,) numbers of pairs of the corpus that each answer stands for.

        `whole` are the cells of all pairs. With a judge, the weight of each of its answers is
        scaled to the answer's share among all judged pairs, so that the weighted share of
        mismatches is near the corrected one.
        """
        pairs, answers = whole.pairs[0], whole.answered[0]
        weights: np.ndarray = (pairs / np.maximum(answers, 1))[self.stratum]
        if self.judge is None or whole.judged is None or not with_judge:
            return weights
        judge = np.where(self.judge < 0, NEITHER, self.judge)
        judged = whole.judged[0]
        share = judged / np.maximum(judged.sum(axis=1, keepdims=True), 1)
        if self.drawn_by_judge:
            by_cell = pairs[:, None] * share / np.maximum(whole.answers[0], 1)
            drawn: np.ndarray = by_cell[self.stratum, judge]
            return drawn
        of_all = (pairs[:, None] * share).sum(axis=0)
        of_answers = np.bincount(judge, weights, minlength=3)
        raked: np.ndarray = weights * (of_all / np.maximum(of_answers, 1e-9))[judge]
        return raked

    def _counts(self, among: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """(R, S) or (R, S, 3) sums over the answers that count."""
        cell, shape = self.stratum, [self.strata]
        if self.judge is not None:
            cell = 3 * self.stratum + np.where(self.judge < 0, NEITHER, self.judge)
            shape = [self.strata, 3]
        size = int(np.prod(shape))
        sums = [
            np.bincount(cell[mine], None if weights is None else weights[mine], minlength=size)
            for mine in among
        ]
        return np.stack(sums).astype(float).reshape(len(among), *shape)
