"""The options that name the answers of a judge beside people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ncclean.base.options import Option, Options, Reads
from ncclean.errors import InputError


@dataclass(frozen=True)
class JudgeAnswers(Options):
    """A judge beside people: its answers on many pairs, which people's answers correct."""

    judge_answers: Annotated[
        str | None,
        Option(
            "A fallible judge's answers, such as judge.parquet of `audit --judge`; "
            "people's answers correct them.",
            reads=Reads.PATH,
        ),
    ] = None
    judge_column: Annotated[
        str | None,
        Option(
            "A column as the judge: answers, or numbers with a cut, such as `NAME<0.3` "
            "(default: the cut that flags the noise rate)."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge_answers is not None and self.judge_column is not None:
            raise InputError("--judge-answers and --judge-column exclude each other")


NO_JUDGE = JudgeAnswers()
