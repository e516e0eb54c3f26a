"""Read people's judgements of captions: any table of images, captions and ratings."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ncclean.data.images.columns import CAPTION_COLUMNS, IMAGE_COLUMNS, PATH_COLUMNS
from ncclean.data.images.registry import table_at
from ncclean.data.images.tables import TABLES
from ncclean.data.images.text_rows import BrokenRow
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.evaluation.agreement import mean_rating

# The first that exists counts.
_IMAGES = ("image", "image_id", "image_name", *PATH_COLUMNS, *IMAGE_COLUMNS)
_CAPTIONS = (*CAPTION_COLUMNS, "hyp", "hypothesis", "candidate", "cand")
_RATINGS = ("human_score", "rating", "judgement", "judgment", "yes_share", "score")
_MOST_VALUES = 100_000_000  # 800 MB: every caption takes the room of the one with most ratings
_JUDGES = re.compile(r"(judge|judgement|judgment|expert|rater|annotator|worker|rating)[ _-]?\d+")


@dataclass(frozen=True)
class Judgements:
    """N judged captions: the image's name, the caption, and (N, J) ratings by up to J judges.

    A caption may have ratings in several columns and in several rows; missing ones are NaN.
    `left_out` counts the rows of the table that are not judgements, by reason.
    """

    image: list[str]
    caption: list[str]
    ratings: np.ndarray
    rating_columns: tuple[str, ...]
    left_out: dict[str, int]

    def select(self, rows: np.ndarray) -> Judgements:
        """Return the judgements of the captions in these rows."""
        return Judgements(
            [self.image[row] for row in rows],
            [self.caption[row] for row in rows],
            self.ratings[rows],
            self.rating_columns,
            self.left_out,
        )

    def averaged(self) -> Judgements:
        """Return the judgements with one rating for each caption, the mean of the judges."""
        mean = mean_rating(self.ratings)[:, None]
        return Judgements(self.image, self.caption, mean, self.rating_columns, self.left_out)


def read_judgements(
    path: str, image: str | None = None, caption: str | None = None, ratings: Sequence[str] = ()
) -> Judgements:
    """Read judgements of captions from csv, tsv, jsonl or Parquet.

    Columns not named are found by their usual names. Raises `InputError` for a file that cannot be
    read, lacks a column or holds no judgement.
    """
    if not path.lower().endswith(TABLES):
        raise InputError(f"{path} is not a table of judgements: it takes {', '.join(TABLES)}")
    try:
        schema = table_at(path).columns(path)
    except ShardError as error:
        raise InputError(str(error)) from error
    names = [name.lower() for name in (schema.names if isinstance(schema, pa.Schema) else schema)]
    of_image = _named(path, names, image, _IMAGES, "--image-column", "image names")
    of_caption = _named(path, names, caption, _CAPTIONS, "--caption-column", "captions")
    of_ratings = _rating_columns(path, names, ratings)
    of_pair: dict[tuple[str, str], list[float]] = {}
    left_out: Counter[str] = Counter()
    try:
        for row in table_at(path).rows(ShardRef(path, path, 0, "")):
            if isinstance(row, BrokenRow):
                left_out["row_broken"] += 1
                continue
            name, text = _text(row.get(of_image)), _text(row.get(of_caption))
            numbers = [_number(row.get(column)) for column in of_ratings]
            lacks = (
                "image_missing" if not name else "caption_missing" if not text
                else "rating_missing" if all(map(math.isnan, numbers)) else None
            )  # fmt: skip
            if lacks is not None:
                left_out[lacks] += 1
                continue
            of_pair.setdefault((name, text), []).extend(numbers)
    except ShardError as error:
        raise InputError(f"{path} cannot be read to its end: {error}") from error
    if not of_pair:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        raise InputError(f"{path} holds no judgement ({counts or 'it is empty'})")
    images, captions = map(list, zip(*of_pair, strict=True))
    most = max(map(len, of_pair.values()))
    if len(of_pair) * most > _MOST_VALUES:
        raise InputError(f"{path} has {most:,} ratings of one caption: average them first")
    values = np.full((len(of_pair), most), math.nan)
    for pair, numbers in enumerate(of_pair.values()):
        values[pair, : len(numbers)] = numbers
    return Judgements(images, captions, values, of_ratings, dict(left_out))


def _named(
    path: str, names: Sequence[str], asked: str | None, usual: Sequence[str], flag: str, what: str
) -> str:
    if asked is not None:
        if asked.lower() not in names:
            raise InputError(f"{path} has no column {asked!r}: there are {', '.join(names)}")
        return asked.lower()
    name = next((name for name in usual if name in names), None)
    if name is None:
        raise InputError(
            f"{path} has no column of {what} ({', '.join(usual[:4])}, ...): name it with {flag}; "
            f"there are {', '.join(names)}"
        )
    return name


def _rating_columns(path: str, names: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """Return the requested columns; else several judges' ratings, or the joint score."""
    if asked:
        named = tuple(_named(path, names, name, (), "--rating", "ratings") for name in asked)
        return tuple(dict.fromkeys(named))
    judges = tuple(name for name in names if _JUDGES.fullmatch(name))
    return judges or (_named(path, names, None, _RATINGS, "--rating", "ratings"),)


def _text(value: Any) -> str:
    """One line of a caption, or the name of an image."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return " ".join(str(value).encode("utf-8", "replace").decode().split())


def _number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan
