"""All measurements of a score table that the page and the figures of a report draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclean.base.estimates import flattened
from ncclean.base.formats import by_name
from ncclean.base.schema import ScoreFacts
from ncclean.report.counts import (
    PairCounts,
    RuleOverlap,
    ShardTable,
    Truth,
    count_pairs,
    overlap_of_rules,
    shard_table,
)
from ncclean.report.curves import CosineDistribution, ScoreCurve, cosine_distribution, score_curves
from ncclean.report.table import ScoreTable
from ncclean.scoring.vague_rate import why_untold, why_vague
from ncclean.storage.run_facts import RunFacts

_SHARES = ("precision", "recall", "f1", "clean_flagged")


@dataclass(frozen=True)
class Measurements:
    """The measurements of a score table that a report shows.

    Each sentence of `missing` names something that the table lacks. `joined_scores` and `partners`
    are those of `ScoreTable`.
    """

    facts: RunFacts
    counts: PairCounts
    cosines: CosineDistribution | None
    curves: tuple[ScoreCurve, ...]
    overlap: RuleOverlap
    shards: ShardTable
    columns: frozenset[str]
    missing: tuple[str, ...]
    joined_scores: Mapping[str, ScoreFacts]
    partners: Mapping[str, int]

    def curve(self, column: str) -> ScoreCurve | None:
        """Return the threshold curve of a score; None if the table lacks the score."""
        return next((curve for curve in self.curves if curve.column == column), None)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers that `ncclean report --json` prints."""
        facts, overlap, curve = self.facts, self.overlap, self.curve("noise_probability")
        pairs = curve.kept(curve.pairs)[curve.start] if curve else None
        wrong = None
        if curve is not None and curve.wrong is not None:
            wrong = float(curve.kept(curve.wrong)[curve.start])
        rules = list(enumerate(overlap.rules))
        return {
            "rows": self.counts.rows,
            "ok": self.counts.ok,
            "failures": {failure.status: failure.count for failure in self.counts.failures},
            "shards": self.shards.total,
            **flattened([("noise_rate", facts.noise_rate)]),
            "separation": facts.separation,
            "audited": facts.audited.answers if facts.audited is not None else None,
            "shift": facts.shift,
            "null_median": self.cosines.null_median if self.cosines else None,
            "expected_mismatched": self.counts.expected_mismatched,
            "kept_at_half": None if pairs is None else int(pairs),
            "expected_mismatched_kept_at_half": wrong,
            "rules": {rule.name: overlap.both(i, i) for i, rule in rules},
            "jaccard": {
                rule.name: {other.name: overlap.jaccard(i, j) for j, other in rules}
                for i, rule in rules
            },
            "detection": _detection_json(overlap.truth),
            **facts.further.to_json(),
            "missing": list(self.missing),
            "joined": dict(self.partners),
        }


def _detection_json(truth: Truth | None) -> dict[str, Any] | None:
    if truth is None:
        return None
    return {
        detection.rule.name: {
            **{name: _defined(getattr(detection.counts, name)) for name in _SHARES},
            "recall_by_kind": detection.by_kind,
        }
        for detection in truth.detections
    }


def _defined(share: float) -> float | None:
    """None for a ratio without a denominator, as JSON has no NaN."""
    return None if math.isnan(share) else share


def measure(paths: Sequence[str], memory_limit: str | None = None) -> Measurements:
    """Measure score files for the report: counts, distributions, curves, shards, rules.

    Raises `InputError` for paths without score files and for other Parquet files.
    """
    return measure_table(ScoreTable.open(paths, memory_limit))


def measure_table(table: ScoreTable) -> Measurements:
    """Measure an opened score table by aggregation in DuckDB."""
    counts = count_pairs(table)
    return Measurements(
        facts=table.facts,
        counts=counts,
        cosines=cosine_distribution(table),
        curves=score_curves(table),
        overlap=overlap_of_rules(table),
        shards=shard_table(table),
        columns=table.columns,
        missing=tuple(_missing(table, counts)),
        joined_scores=table.joined_scores,
        partners=table.partners,
    )


def _missing(table: ScoreTable, counts: PairCounts) -> list[str]:
    """The sentences that apply, in the order in which the page shows them."""
    if not counts.ok:
        return ["No pair could be scored, so there are no scores to show."]
    facts, further = table.facts, table.facts.further
    vague = "" if facts.audited is not None else why_vague(facts.noise_rate) or ""
    absent = ", ".join(sorted({"clean_posterior", "neg_clip_loss"} - table.columns))
    has_null = facts.mismatched is not None or facts.several_runs
    has_text = "text" in table.columns and table.rows(
        "SELECT 1 FROM pairs WHERE text IS NOT NULL LIMIT 1"
    )
    sentences = (
        (
            facts.several_runs,
            "The files come from several scoring runs; model, shift, noise rate and null hold "
            "for one run and are left out.",
        ),
        (
            facts.has_other_pairs,
            "Pairs were removed or added since the scoring; the noise rate holds for the scored "
            "ones and is left out.",
        ),
        (
            facts.model is None and not facts.several_runs,
            "The files do not record how they were made (no ncclean metadata).",
        ),
        (
            further.images,
            f"Pictures beside those of the samples are in no row: {by_name(further.images)}. "
            "--image-key names others to be scored.",
        ),
        (
            further.captions,
            f"Captions beside those of the samples are in no row: {by_name(further.captions)}. "
            "--caption-key names others to be scored.",
        ),
        (
            further.names,
            "Image files were found under another name than the table has, which differs in: "
            f"{by_name(further.names)}.",
        ),
        (vague, f"{vague[:1].upper()}{vague[1:]}"),
        *(
            (True, sentence)
            for sentence in why_untold(
                facts.has_words, facts.has_parts, facts.near_miss_rate, facts.part_noise_rate
            )
        ),
        (
            not counts.calibrated,
            "The table has no noise probabilities (they need blocks of at least two pairs), so "
            "expected numbers of mismatched pairs are left out.",
        ),
        (
            counts.calibrated and not has_null,
            "The table does not hold the histogram of known mismatches (an older ncclean wrote "
            "it): the mismatched distribution is drawn as the sum of the noise probabilities, "
            "and the null's median is left out.",
        ),
        (absent, f"The table has no column {absent}."),
        (not has_text, "The table holds no captions (it was scored with --no-text)."),
    )
    return [sentence for applies, sentence in sentences if applies]
