"""Policies: the pairs of a score table to keep, their weights, and the SQL for both.

A policy is a chain of filters. The first one that a pair fails drops it:

1. its status is not `ok`;
2. `where` is not true for it;
3. it is a near-duplicate of a pair that is kept (`dedup`);
4. the rule of `method` flags it;
5. no part of its caption is left (`drop_parts`);
6. its score has no value, or misses `threshold`;
7. another caption of its image, still kept, has a better score (`best_caption`);
8. it is not among the best `keep_fraction` of the pairs still kept;
9. its value of `balance_by` has `cap` better pairs;
10. it is not drawn (`sample`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ncclean.base.options import Option, Options, Seed
from ncclean.errors import InputError
from ncclean.selection.drop_parts import COLUMNS, HAS_PARTS
from ncclean.storage.quoting import finite, identifier

if TYPE_CHECKING:
    from ncclean.base.rules import Method
    from ncclean.base.schema import ScoreFacts

_PART_THRESHOLD = 0.5
_PENALTY = 0.15


@dataclass(frozen=True, kw_only=True)
class Policy(Options):
    """A rule that decides which pairs of a score table to keep.

    `method` is `osa` (weight above 0), `ncu` (the retain set), `disncl` (mutual best matches) or
    `noise-probability` (below `threshold`, .5 if not given). `score` is a column, or SQL over the
    columns, to compare with `threshold` or to take the best `keep_fraction` by. Higher is cleaner,
    unless `ncclean.base.schema` says otherwise for a column, or `lowest` for any other score.
    `rank(x)` in `score` and `where` is the percent rank of x over the scored pairs. `weights` names
    the column of the weights; the default is 1, and `osa_weight` for `osa`. `with_forget` also
    keeps NCU's forget set, marked in `split`. `best_caption` keeps one caption of each image, the
    best by `score`, or by `similarity` without one. `balance_by` keeps at most `cap` pairs of each
    value, the best by `score`, or random ones without one; pairs without a value are kept.
    `drop_parts` removes caption parts whose noise probability is `part_threshold` or more; captions
    with such parts are then dropped only if all parts are, not by `noise-probability`. `sample`
    draws `size` pairs by `score`, with repeats; see `ncclean.selection.soft_cap`. Raises
    `InputError` for options that do not go together.
    """

    where: Annotated[
        str | None,
        Option("SQL condition that kept pairs must also meet.", sql_over=("scores", "join")),
    ] = None
    method: Annotated[
        Literal["osa", "ncu", "disncl", "noise-probability"] | None,
        Option("Rule: `osa`, `ncu`, `disncl` or `noise-probability`."),
    ] = None
    score: Annotated[
        str | None,
        Option(
            "Column or SQL to rank by, such as `similarity - 2 * blur`; `rank(x)` "
            "is a percent rank.",
            sql_over=("scores", "join"),
        ),
    ] = None
    keep_fraction: Annotated[
        float | None, Option("Keep this share, the best by --score.", low=0, high=1)
    ] = None
    threshold: Annotated[
        float | None,
        Option("Worst --score to keep; for `noise-probability`, the value to stay below."),
    ] = None
    lowest: Annotated[bool, Option("A lower --score is cleaner (known for ncclean's columns).")] = (
        False
    )
    weights: Annotated[
        str | None,
        Option(
            "Column of the weights (default: 1; osa: osa_weight).", columns_of=("scores", "join")
        ),
    ] = None
    dedup_by: Annotated[
        Literal["image", "text", "both"] | None,
        Option("What --dedup compares: `image`, `text` or `both` (default: `both`)."),
    ] = None
    best_caption: Annotated[
        bool, Option("Keep only the best caption of each image, by --score (default: similarity).")
    ] = False
    balance_by: Annotated[
        str | None,
        Option(
            "Column or SQL, such as `cluster`: keep at most --cap pairs per value.",
            sql_over=("scores", "join"),
        ),
    ] = None
    cap: Annotated[int | None, Option("Maximum pairs per value of --balance-by.", low=1)] = None
    sample: Annotated[
        Literal["soft-cap"] | None,
        Option("`soft-cap`: draw --size pairs by --score, with --penalty."),
    ] = None
    size: Annotated[int | None, Option("Pairs to draw, counting repeats.", low=1)] = None
    penalty: Annotated[float, Option("How much each draw lowers a pair's score.", low=0)] = _PENALTY
    seed: Seed = 0
    with_forget: Annotated[bool, Option("Also keep NCU's forget set, marked in `split`.")] = False
    drop_parts: Annotated[
        bool, Option("Remove the wrong sentences that `score --caption-parts` found.")
    ] = False
    part_threshold: Annotated[
        float, Option("With --drop-parts: the noise probability to stay below.", low=0, high=1)
    ] = _PART_THRESHOLD

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score is None and self.keep_fraction is not None:
            raise InputError("--keep-fraction needs --score, the column to rank by")
        uses = (
            self.keep_fraction is not None,
            self.threshold is not None,
            self.best_caption,
            self.balance_by is not None,
            self.sample is not None,
        )
        if self.score is not None and not any(uses):
            raise InputError(
                "--score does nothing by itself: add --keep-fraction, --threshold, --best-caption, "
                "--balance-by or --sample"
            )
        if (self.balance_by is None) != (self.cap is None):
            raise InputError("--balance-by and --cap go together")
        if (self.sample is None) != (self.size is None):
            raise InputError("--sample and --size go together")
        if self.penalty != _PENALTY and self.sample is None:
            raise InputError("--penalty needs --sample")
        if self.sample is not None and self.score is None:
            raise InputError("--sample needs --score, the score to draw by")
        if self.score is None and self.threshold is not None and not self.by_noise_probability:
            raise InputError("--threshold needs --score or --method noise-probability")
        self._check_range()
        if self.lowest and self.score is None:
            raise InputError("--lowest needs --score")
        if self.part_threshold != _PART_THRESHOLD and not self.drop_parts:
            raise InputError("--part-threshold needs --drop-parts")
        if self.with_forget and self.method != "ncu":
            raise InputError("--with-forget needs --method ncu")
        if self.where is not None:
            object.__setattr__(self, "where", _one_expression(self.where, "--where"))
        if self.balance_by is not None:
            balance_by = _one_expression(self.balance_by, "--balance-by")
            object.__setattr__(self, "balance_by", balance_by)

    def _check_range(self) -> None:
        """Refuse a CLIP score of 30, a cosine of .3 times 100, which would keep nothing."""
        column = self.score or "noise_probability"
        facts = _facts(column)
        if self.threshold is None or facts is None or facts.range is None:
            return
        low, high = facts.range
        if not low <= self.threshold <= high:
            raise InputError(
                f"--threshold {self.threshold:.15g} is outside the range of {column}, "
                f"{low:g} to {high:g}"
            )

    @property
    def by_noise_probability(self) -> bool:
        return self.method == "noise-probability"

    @property
    def prefers_low(self) -> bool:
        """Whether lower values of the policy's score are cleaner."""
        facts = _facts(self.score or "")
        return self.lowest or (facts is not None and not facts.higher_is_cleaner)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the policy that differ from their defaults."""
        fields = dataclasses.asdict(self)
        return {
            name: value
            for name, value in fields.items()
            if value is not None and value is not False and name not in self._idle()
        }

    def _idle(self) -> set[str]:
        """The fields that change nothing here."""
        idle = set() if self.sample is not None else {"penalty"}
        idle |= set() if self.drop_parts else {"part_threshold"}
        has_chance = self.sample is not None or (self.balance_by and self.score is None)
        return idle if has_chance else {*idle, "seed"}

    def columns(self) -> dict[str, str]:
        """Return the columns that the policy needs besides those of its SQL, with their options."""
        needed = {"uid": "select", "shard": "select", "key": "select", "row": "select"}
        needed["status"] = "select"
        if self.best_caption:
            needed["caption_number"] = "--best-caption"
        if self.method is not None:
            needed[_method(self.method).column] = f"--method {self.method}"
        if self.weights is not None:
            needed[self.weights] = "--weights"
        if self.drop_parts:
            needed |= dict.fromkeys(COLUMNS, "--drop-parts, for tables scored with --caption-parts")
        return needed

    def rule(self) -> str | None:
        """SQL that is true for the pairs that `--method` keeps; null counts as false."""
        if self.method is None:
            return None
        method = _method(self.method)
        if self.with_forget:
            return f"{method.column} IS NOT NULL"
        keeps = method.keeps
        if self.by_noise_probability and self.score is None and self.threshold is not None:
            keeps = f"{method.column} < {self.threshold!r}"
        if self.by_noise_probability and self.drop_parts:
            # Its parts say more: whether all of them are wrong.
            keeps = f"({HAS_PARTS} OR {keeps})"
        return keeps

    def goodness(self, value: str | None = None) -> str | None:
        """Return SQL for the policy's score, negated if lower is cleaner; null for NaN.

        `value` is the SQL of the score, if it is not a column's name.
        """
        if self.score is None:
            return None
        value = value or identifier(self.score)
        return f"-({finite(value)})" if self.prefers_low else finite(value)

    def bound(self) -> float | None:
        """The policy's threshold, negated if lower scores are cleaner."""
        if self.score is None or self.threshold is None:
            return None
        return -self.threshold if self.prefers_low else self.threshold

    def weight(self) -> str:
        """Return SQL for the weight of a kept pair."""
        column = self.weights or ("osa_weight" if self.method == "osa" else None)
        return "1.0" if column is None else identifier(column)


# Declaring the options does not need Arrow, only applying them does.


def _facts(score: str) -> ScoreFacts | None:
    from ncclean.base.schema import facts_of

    return facts_of(score)


def _method(name: str) -> Method:
    from ncclean.base.rules import METHODS

    return METHODS[name]


def _one_expression(text: str, option: str) -> str:
    from ncclean.storage.expressions import one_expression

    return one_expression(text, option)
