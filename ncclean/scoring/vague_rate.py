"""Describe noise rates that are unknown, or too uncertain. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclean.base.estimates import Estimate

NO_KNOWN_MISMATCHES = (
    "no pair is known to be mismatched: pairs whose captions are all equal, or of which no two are "
    "in one block, have no noise rate and no noise_probability."
)
_VAGUE = 0.2  # width of an interval that tells next to nothing


@dataclass(frozen=True)
class ForeignLanguage:
    """A language that the estimator may not know, found in a sample of a table's captions.

    `share` of the captions are in it. A share `wrong` of these looks mismatched, and a share
    `wrong_in_english` of the captions in English, None if there are hardly any.
    """

    language: str
    share: float
    wrong: float
    wrong_in_english: float | None

    def __str__(self) -> str:
        english = self.wrong_in_english
        beside = "" if english is None else f", of those in English {english:.0%}"
        return (
            f"about {self.share:.0%} of the captions are in the language {self.language}; "
            f"{self.wrong:.0%} of them look wrong{beside}: the model may not know that language, "
            "so do not take them for wrong. Score with a model that knows it, or with --signals "
            "language --calibrate-by language"
        )


def why_vague(rate: Estimate) -> str | None:
    """Explain why a noise rate's interval is too wide to use, in a sentence; None if it is not.

    The estimated separation of matched from mismatched pairs is not mentioned: it is only right if
    the rate is.
    """
    if not rate.high - rate.low > _VAGUE:  # or unknown
        return None
    if tells_nothing(rate):
        return (
            "the estimator recognises next to no pair of this corpus as matched, so its noise rate "
            "may be anything, and noise_probability calls all pairs mismatched. Check that the "
            "model knows such images and captions, and that captions and embeddings differ from "
            "pair to pair; then score again."
        )
    return (
        f"the estimator cannot tell how noisy this corpus is: between {rate.low:.0%} and "
        f"{rate.high:.0%}. Score with a stronger model, or more pairs, before trusting "
        "noise_probability."
    )


def is_usable(rate: Estimate) -> bool:
    """Check whether a share is known well enough to give probabilities.

    It is if its upper end is at most .1 above the estimate, and the interval is not all of [0, 1].
    The lower end does not count: it is low whenever right ones may score like wrong ones.
    """
    return rate.is_known and not tells_nothing(rate) and rate.high - rate.value <= _VAGUE / 2


def why_untold(words: bool, parts: bool, near_miss: Estimate, part: Estimate) -> Iterator[str]:
    """Yield a sentence for each of `--words` and `--caption-parts` that gives no probabilities.

    Only for those that were requested, by `words` and `parts`. `near_miss` and `part` are the
    estimated shares of captions with a wrong word and of foreign parts.
    """
    for option, is_asked, rate, what, fault, columns in (
        ("--words", words, near_miss, "words", "another word", "near_miss_probability is null, and "
         "suspect_word and better_word mean nothing"),
        ("--caption-parts", parts, part, "sentences", "a foreign sentence",
         "probabilities of sentences are null"),
    ):  # fmt: skip
        if is_asked and not is_usable(rate):
            yield (
                f"{option}: this model cannot tell {what}: captions with {fault} put in on purpose "
                f"score like these, or too few have any to try. So {columns}; that does not say "
                "that the captions are right. Try a stronger model."
            )


def tells_nothing(rate: Estimate) -> bool:
    """Check whether the interval of a noise rate covers all of [0, 1]."""
    return rate.low == 0 and rate.high == 1
