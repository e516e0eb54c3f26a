"""Options of `ncclean explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ncclean.base.options import Option, Options, Seed


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(Options):
    """Rules for what counts as a cause.

    `by` lists columns or SQL whose values are also groups; fractional numbers are cut into eight
    equal parts. A group has at least `min_pairs` pairs, and its share of wrong pairs exceeds that
    of comparable pairs by `min_excess`. `false_discoveries` bounds the expected share of false
    causes (Benjamini and Yekutieli, 2001). `clusters` is the number of image clusters, None for
    about one per 400 pairs, at most 256.
    """

    by: Annotated[
        Sequence[str],
        Option(
            "Column or SQL whose values are also groups, such as `source`.",
            sql_over=("scores", "join"),
        ),
    ] = ()
    min_pairs: Annotated[int, Option("Minimum pairs of a group.", low=10)] = 50
    min_excess: Annotated[
        float, Option("Minimum excess of wrong pairs over comparable pairs.", above=0, below=1)
    ] = 0.05
    false_discoveries: Annotated[
        float, Option("Maximum expected share of false causes.", above=0, below=1)
    ] = 0.05
    clusters: Annotated[
        int | None,
        Option("Image clusters (default: one per 400 pairs, at most 256).", low=2, high=4096),
    ] = None
    examples: Annotated[int, Option("Examples of each cause.", low=0, high=100)] = 6
    seed: Seed = 0
