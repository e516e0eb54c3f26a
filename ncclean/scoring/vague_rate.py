"""Sentences about a noise rate that is not known, or not well enough. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator

from ncclean.base.estimates import Estimate

NO_KNOWN_MISMATCHES = (
    "no pair is known to be mismatched: pairs whose captions are all equal, or of which no two are "
    "in one block, have no noise rate and no noise_probability."
)
_VAGUE = 0.2  # between the ends of an interval that tells next to nothing


def why_vague(rate: Estimate) -> str | None:
    """Explain why a noise rate's interval is too wide to use; None if it is not.

    The estimated separation of matched from mismatched pairs is not named: it is right only where
    the rate is.
    """
    if not rate.high - rate.low > _VAGUE:  # or not known
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
    """Whether a share is known well enough for probabilities: above, by half of that width.

    Its lower end does not count: that is lower wherever right ones may score like wrong ones.
    """
    return rate.is_known and not tells_nothing(rate) and rate.high - rate.value <= _VAGUE / 2


def why_untold(words: bool, parts: bool, near_miss: Estimate, part: Estimate) -> Iterator[str]:
    """Explain why `--words` and `--caption-parts`, where asked for, give no probabilities."""
    for option, is_asked, rate, what, columns in (
        ("--words", words, near_miss, "words", "near_miss_probability is"),
        ("--caption-parts", parts, part, "sentences", "probabilities of sentences are"),
    ):
        if is_asked and not is_usable(rate):
            yield (
                f"{option}: the estimator cannot tell wrong {what} from right ones in these "
                f"captions, or too few captions have any to try, so {columns} null; that does not "
                "say that they are right. Try a stronger model."
            )


def tells_nothing(rate: Estimate) -> bool:
    """Whether the interval of a noise rate covers all of [0, 1]."""
    return rate.low == 0 and rate.high == 1
