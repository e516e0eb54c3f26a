"""What is true of the causes that `ncclean explain` reports.

A reported cause names a planted one if at least half of the wrong pairs that it selects are of that
one. It counts as false if its pairs are wrong in truth no more often than the pairs in no planted
cause, by the least excess that is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ncclean
from ncclean.explaining.cause_table import Cause
from ncclean.explaining.options import ExplainOptions
from ncclean.storage.joined import query

MIN_EXCESS = ExplainOptions.min_excess
_OVERLAP = 0.5
_MEMORY = "1GB"


@dataclass(frozen=True)
class Explained:
    """The paths and summaries of a corpus that was scored and explained."""

    scores: str
    join: Sequence[str]
    scored: Any
    summary: Any

    def members(self, cause: Cause) -> set[str]:
        """The uids of a cause's pairs."""
        clusters = self.summary.clusters
        joins = [*self.join, *([f"clusters={clusters}"] if clusters is not None else [])]
        sql = f"SELECT uid FROM scores WHERE {cause.condition}"
        return {uid for (uid,) in query(sql, [self.scores], _MEMORY, joins=joins).fetchall()}


def explained(
    source: Path, out: Path, *, embeddings: bool = True, join: Sequence[str] = (),
    score: Mapping[str, Any], explain: Mapping[str, Any] | None = None,
) -> Explained:  # fmt: skip
    """Score a source and explain the table, with embeddings or without."""
    scores, vectors = str(out / "scores.parquet"), str(out / "embeddings")
    written = {"embeddings": vectors} if embeddings else {}
    scored = ncclean.score([str(source)], out=scores, **written, **score).summary
    summary = ncclean.explain(
        [scores], out=str(out / "causes.parquet"), embeddings=[vectors] if embeddings else [],
        join=list(join), **(explain or {}),
    ).summary  # fmt: skip
    return Explained(scores, join, scored, summary)


@dataclass(frozen=True)
class Truth:
    """Uids of all pairs, of the wrong ones by outcome, and of the wrong ones of planted causes."""

    everyone: set[str]
    wrong: Mapping[str, set[str]]
    planted: Mapping[str, set[str]]

    def judge(self, explained: Explained) -> dict[str, Any]:
        """What is true of each reported cause, and which planted ones were found, by what.

        `is` names the planted cause that a reported one is; `covered` is the share of its wrong
        pairs that those which name it select.
        """
        selected: dict[str, set[str]] = {}
        names: dict[str, list[str]] = {}
        reported = []
        for cause in explained.summary.causes:
            members = explained.members(cause)
            reported.append(self._beside(cause, members))
            if name := reported[-1]["is"]:
                selected.setdefault(name, set()).update(members & self.planted[name])
                names.setdefault(name, []).append(f"{cause.kind}: {cause.label}")
        return {
            "planted": {name: len(own) for name, own in self.planted.items()},
            "found": {name: "; ".join(several) for name, several in names.items()},
            "covered": {name: len(of) / len(self.planted[name]) for name, of in selected.items()},
            "reported": reported,
            "uncertain": [
                self._beside(cause, explained.members(cause))
                for cause in explained.summary.uncertain
            ],
            "tested": explained.summary.tested,
        }

    def _beside(self, cause: Cause, members: set[str]) -> dict[str, Any]:
        """A cause of these pairs beside the truth."""
        wrong, in_causes = set().union(*self.wrong.values()), set().union(*self.planted.values())
        count = max(len(members), 1)
        base = len(wrong - in_causes) / max(len(self.everyone - in_causes), 1)
        least = _OVERLAP * max(len(members & wrong), 1)
        names = [name for name, own in self.planted.items() if len(members & own) >= least]
        return {
            "kind": cause.kind,
            "label": cause.label,
            "outcome": cause.outcome,
            "pairs": len(members),
            "rate": cause.rate.value,
            "low": cause.rate.low,
            "high": cause.rate.high,
            "truth": len(members & self.wrong.get(cause.outcome, wrong)) / count,
            "is": names[-1] if names else "",
            "false": len(members & wrong) / count - base < MIN_EXCESS,
        }
