"""The text that `ncclean audit --judge` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ncclean.base.formats import counted, facts, share

from .display import Note, Shown

if TYPE_CHECKING:
    from ncclean.judging.judged import Judged, JudgePlan, NamedWords


def plan_lines(plan: JudgePlan) -> Iterator[Shown]:
    """Yield lines of text on what a judge would be asked, and on the cost."""
    yield facts(
        (
            ("pairs", f"{plan.pairs:,}"),
            ("requests", f"{plan.pairs:,}, and one more for each that must be repeated"),
            ("tokens in", f"about {plan.tokens_in:,}"),
            ("tokens out", f"about {plan.tokens_out:,}"),
            ("prompt", f"{plan.judge['prompt']} ({plan.judge['prompt_hash']})"),
        )
    )
    yield "models count the tokens of pictures differently; a run shows those used, and its speed"


def judged_lines(judged: Judged) -> Iterator[Shown]:
    """Yield lines of text on a judge's answers."""
    answers = ", ".join(f"{count:,} {kind}" for kind, count in judged.answers.items() if count)
    speed = judged.pairs_per_second
    pace = f", {speed:,.1f} pairs/s" if speed is not None else ""
    yield f"{judged.judged:,} of {judged.pairs:,} pairs judged: {answers or 'none'}"
    yield f"{judged.asked:,} asked for now{pace}; {judged.tokens:,} tokens in all"
    if judged.reasons:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in judged.reasons.items())
        yield f"cannot tell: {reasons}"
    if judged.not_asked:
        yield Note(
            f"--judge-tokens leaves {counted(judged.not_asked, 'pair')} unasked. Those judged are "
            "a smaller sample; the same command with more tokens goes on"
        )
    yield from _named_lines("suspect word", judged.suspect_word)
    yield from _named_lines("worst part", judged.worst_part)
    if judged.missing_shards:
        missing = judged.missing_shards
        yield Note(f"not among --shards: {counted(len(missing), 'shard')} (first: {missing[0]})")
    if judged.judged:
        yield f"written to {judged.path}"


def judged_figures(judged: Judged) -> dict[str, str]:
    """Return the key figures of a judge's answers, as text by name."""
    mismatches = judged.answers["mismatch"]
    return {
        "judged": f"{judged.judged:,}",
        "mismatch": f"{mismatches:,}",
        "cannot tell": f"{judged.answers['cannot tell']:,}",
        "tokens": f"{judged.tokens:,}",
    }


def _named_lines(name: str, named: NamedWords | None) -> Iterator[Shown]:
    if named is not None:
        yield (
            f"{name}: the same as the judge's on {named.same:,} of {named.checked:,} pairs where "
            f"both name one ({share(named.same / named.checked)})"
        )
