"""The overlap of the detection rules on a table, and their accuracy where the truth is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ncclean.base.rules import RULES, DetectionCounts, Rule
from ncclean.report.table import ScoreTable

_MOST_KINDS = 8


@dataclass(frozen=True)
class Combination:
    """The pairs that exactly these rules flag; bit i of `mask` stands for rule i."""

    mask: int
    pairs: int
    expected_mismatched: float | None


@dataclass(frozen=True)
class Detection:
    """A rule against the truth; `by_kind` is the share of each kind of noise that it flags."""

    rule: Rule
    counts: DetectionCounts
    by_kind: dict[str, float]

    @property
    def precision(self) -> float | None:
        return _defined(self.counts.precision)

    @property
    def recall(self) -> float | None:
        return _defined(self.counts.recall)

    @property
    def f1(self) -> float | None:
        return _defined(self.counts.f1)

    @property
    def false_alarms(self) -> float | None:
        """The share of the clean pairs that the rule flags."""
        return _defined(self.counts.clean_flagged)


@dataclass(frozen=True)
class Truth:
    """The pairs whose json says whether they are noisy, and the detection of every rule on them."""

    noisy: int
    clean: int
    kinds: dict[str, int]
    expected_mismatched: float | None  # sum of noise_probability over the same pairs
    detections: tuple[Detection, ...]


@dataclass(frozen=True)
class RuleOverlap:
    """`combinations` partition the scored pairs, the largest first."""

    rules: tuple[Rule, ...]
    combinations: tuple[Combination, ...]
    truth: Truth | None = field(default=None)

    @property
    def pairs(self) -> int:
        return sum(combination.pairs for combination in self.combinations)

    def both(self, first: int, second: int) -> int:
        """Number of pairs that two rules both flag."""
        wanted = 1 << first | 1 << second
        return sum(c.pairs for c in self.combinations if c.mask & wanted == wanted)

    def jaccard(self, first: int, second: int) -> float | None:
        """Jaccard index of two rules: pairs that both flag over pairs that either flags."""
        both = self.both(first, second)
        either = self.both(first, first) + self.both(second, second) - both
        return both / either if either else None


def overlap_of_rules(table: ScoreTable) -> RuleOverlap:
    filled = table.rows(
        f"SELECT {', '.join(f'count({rule.condition})' for rule in RULES)} "
        "FROM pairs WHERE status = 'ok'"
    )[0]
    rules = tuple(rule for rule, count in zip(RULES, filled, strict=True) if count)
    kinds = [
        kind
        for kind, _ in table.rows(
            "SELECT noise_kind, count(*) AS pairs FROM pairs WHERE status = 'ok' AND is_noisy "
            "AND noise_kind <> '' GROUP BY noise_kind ORDER BY pairs DESC, noise_kind "
            f"LIMIT {_MOST_KINDS}"
        )
    ]
    bits = [f"coalesce({rule.condition}, false)::INTEGER << {i}" for i, rule in enumerate(rules)]
    mask = " | ".join(f"({bit})" for bit in bits) or "0"
    cells = table.rows(
        f"SELECT {mask} AS mask, is_noisy, "
        "CASE WHEN is_noisy THEN list_position(?, noise_kind) END AS kind, "
        "count(*), sum(noise_probability) FROM pairs WHERE status = 'ok' GROUP BY ALL",
        [kinds],
    )
    return RuleOverlap(rules, _combinations(cells), _truth(cells, rules, kinds))


Cells = list[tuple[int, "bool | None", "int | None", int, "float | None"]]


def _combinations(cells: Cells) -> tuple[Combination, ...]:
    pairs: dict[int, int] = {}
    expected: dict[int, float | None] = {}
    for mask, _, _, count, wrong in cells:
        pairs[mask] = pairs.get(mask, 0) + count
        if wrong is not None:
            expected[mask] = (expected.get(mask) or 0.0) + wrong
    order = sorted(pairs, key=lambda mask: (-pairs[mask], mask))
    return tuple(Combination(mask, pairs[mask], expected.get(mask)) for mask in order)


def _truth(cells: Cells, rules: tuple[Rule, ...], kinds: list[str]) -> Truth | None:
    labelled = [cell for cell in cells if cell[1] is not None]
    noisy = sum(count for _, is_noisy, _, count, _ in labelled if is_noisy)
    if not noisy:
        return None
    clean = sum(count for _, _, _, count, _ in labelled) - noisy
    per_kind = {
        name: sum(count for _, _, kind, count, _ in labelled if kind == position)
        for position, name in enumerate(kinds, 1)
    }
    detections = []
    for index, rule in enumerate(rules):
        hit = [cell for cell in labelled if cell[0] >> index & 1]
        caught = sum(cell[3] for cell in hit if cell[1])
        alarms = sum(cell[3] for cell in hit) - caught
        detections.append(
            Detection(
                rule=rule,
                counts=DetectionCounts(caught, alarms, noisy, clean),
                by_kind={
                    name: sum(cell[3] for cell in hit if cell[2] == position) / per_kind[name]
                    for position, name in enumerate(kinds, 1)
                },
            )
        )
    expected = [cell[4] for cell in labelled if cell[4] is not None]
    return Truth(noisy, clean, per_kind, sum(expected) if expected else None, tuple(detections))


def _defined(share: float) -> float | None:
    """None for a ratio without a denominator, as JSON has no NaN."""
    return None if math.isnan(share) else share
