"""The results of a judge: counts, reasons, tokens, and the words it calls wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclean.auditing.answers import ANSWERS
from ncclean.judging.reply import Judgement

_WORD = re.compile(r"\w+(?:['’-]\w+)*")


@dataclass(frozen=True)
class NamedWords:
    """Pairs for which judge and table both name something (`checked`), and the same (`same`)."""

    checked: int = 0
    same: int = 0


@dataclass(frozen=True)
class Judged:
    """The answers on a sample; this run requested `asked` of them.

    `reasons` counts those behind `cannot tell`; `not_asked` pairs are left by the budget.
    """

    pairs: int
    answers: Mapping[str, int]
    reasons: Mapping[str, int]
    asked: int
    not_asked: int
    tokens: int
    seconds: float
    judge: Mapping[str, Any]
    path: str
    suspect_word: NamedWords | None = None
    worst_part: NamedWords | None = None
    missing_shards: Sequence[str] = ()
    failed_shards: Mapping[str, str] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        return sum(self.answers.values())

    @property
    def pairs_per_second(self) -> float | None:
        return self.asked / self.seconds if self.asked and self.seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        named = {"suspect_word": self.suspect_word, "worst_part": self.worst_part}
        return {
            **self.__dict__,
            **{name: None if both is None else both.__dict__ for name, both in named.items()},
            "judged": self.judged,
            "pairs_per_second": self.pairs_per_second,
        }


@dataclass(frozen=True)
class JudgePlan:
    """Requests to a judge, and their estimated tokens."""

    pairs: int
    tokens_in: int
    tokens_out: int
    judge: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


def counts(judgements: Iterable[Judgement]) -> tuple[dict[str, int], dict[str, int]]:
    """Count the answers, and the kinds of reasons: the text before their colon."""
    by_answer, by_reason = Counter(dict.fromkeys(ANSWERS, 0)), Counter[str]()
    for judgement in judgements:
        by_answer[judgement.answer] += 1
        if judgement.reason is not None:
            by_reason[judgement.reason.partition(":")[0]] += 1
    return dict(by_answer), dict(by_reason.most_common())


def same_words(pairs: Iterable[tuple[Sequence[str] | None, str | None]]) -> NamedWords:
    """Count the pairs on which a judge's words contain the table's suspect word."""
    named = [(words, suspect) for words, suspect in pairs if words and suspect]
    same = sum(_contains(words, suspect) for words, suspect in named)
    return NamedWords(len(named), same)


def same_parts(pairs: Iterable[tuple[Sequence[str] | None, str | None]]) -> NamedWords:
    """Count the pairs on which one of a judge's texts is the table's worst part, or lies in it."""
    named = [(words, part) for words, part in pairs if words and part]
    same = sum(any(_is_within(text, part) for text in words) for words, part in named)
    return NamedWords(len(named), same)


def _tokens(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _contains(words: Sequence[str], suspect: str) -> bool:
    return any(_is_within(suspect, text) for text in words)


def _is_within(text: str, whole: str) -> bool:
    """Whether the words of a text follow one another in another text."""
    inner, outer = _tokens(text), _tokens(whole)
    starts = range(len(outer) - len(inner) + 1)
    return bool(inner) and any(outer[at : at + len(inner)] == inner for at in starts)
