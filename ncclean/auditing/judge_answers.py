"""The options that name the answers of a judge beside people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ncclean.errors import InputError
from ncclean.options import Option, Options, Reads


@dataclass(frozen=True)
class JudgeAnswers(Options):
    """A judge beside people: its answers on many pairs, which people's answers correct."""

    judge_answers: Annotated[
        str | None,
        Option(
            "Answers of a judge who may err, on many pairs, such as the judge.parquet of "
            "`audit --judge`; those of people correct them.",
            reads=Reads.PATH,
        ),
    ] = None
    judge_column: Annotated[
        str | None,
        Option(
            "A column of the table as the judge: answers, or numbers, which `NAME<0.3` or "
            "`NAME>=0.3` turns into mismatches (default: cut to flag the table's noise rate).",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge_answers is not None and self.judge_column is not None:
            raise InputError("--judge-answers and --judge-column exclude each other")


NO_JUDGE = JudgeAnswers()
