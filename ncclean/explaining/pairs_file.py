"""The scored pairs of a table in a file of their own, with the values that groups are compared by.

The evidence beside `noise_probability`. A cosine is low where the pair is wrong, and where captions
of its kind have low cosines: short ones have. The rank of the own image among the other images of
the block, for the same caption, does not see that: what all cosines of a caption have in common
cancels. The rank of the own caption among captions is blind to what all cosines of an image have in
common. Each rank becomes the mean noise probability of the pairs with that rank (by its share of
the block, in bins that are finest at the top), so that its mean over a group is that of the noise
probability unless the group's scores are low for another reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from ncclean.explaining.kinds import TOKENS, length_class
from ncclean.explaining.outcomes import BY_CAPTIONS, BY_IMAGES, MISMATCH, Outcome
from ncclean.storage.quoting import identifier

_RANKS = {BY_IMAGES: "t2i_rank", BY_CAPTIONS: "i2t_rank"}
_FEWEST_RIVALS = 16  # in a block, for a rank to tell anything
_FINEST = 1024  # the first bin is a rank below this part of the block


@dataclass(frozen=True)
class Values:
    """Columns of the pairs: `v0`, `v1`, ... are the outcomes', `v0_0`, ... the evidence beside."""

    outcomes: tuple[Outcome, ...]

    def names(self) -> list[str]:
        """All value columns, an outcome's own before its evidence."""
        return [
            name
            for number, outcome in enumerate(self.outcomes)
            for name in (self.of(number), *self.evidence(number, tuple(_all_evidence(outcome))))
        ]

    @staticmethod
    def of(number: int) -> str:
        return f"v{number}"

    @staticmethod
    def evidence(number: int, names: Sequence[str]) -> list[str]:
        return [f"v{number}_{name}" for name in names]

    def evidence_of(self, number: int, made_of: str) -> list[str]:
        """Columns that must be higher in a group of this kind, beside the outcome's own."""
        return self.evidence(number, self.outcomes[number].evidence[made_of])


def _all_evidence(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(name for names in outcome.evidence.values() for name in names))


def pairs_query(
    connection: duckdb.DuckDBPyConnection,
    columns: Mapping[str, str],
    values: Values,
    further: Mapping[str, str],
) -> str:
    """SQL for the pairs with scores of the view `scores`, one row each.

    `place` numbers them, `stratum` is the class of the caption's length; `further` are columns by
    name with their SQL. It reads the table for what ranks mean first.
    """
    strata = length_class(f"len({TOKENS})") if "text" in columns else "0"
    kept = [name for name in ("shard", "row", "caption_number", "uid", "text", "url", "width",
                              "height", "caption_key", "language") if name in columns]  # fmt: skip
    selected = [identifier(name) for name in kept]
    selected += [f"{sql} AS {identifier(name)}" for name, sql in further.items()]
    selected.append(f"{strata}::UTINYINT AS stratum")
    joined = ""
    for number, outcome in enumerate(values.outcomes):
        own = f"coalesce(({outcome.value})::FLOAT, 0)"
        selected.append(f"{own} AS {values.of(number)}")
        if outcome.name != MISMATCH:
            continue
        has_ranks = {"block", *_RANKS.values()} <= set(columns)
        for name, column in zip(
            _all_evidence(outcome), values.evidence(number, _all_evidence(outcome)), strict=True
        ):
            meaning = _meaning(connection, _RANKS[name], own) if has_ranks else {}
            sql = _mapped(_rank_bin(_RANKS[name]), meaning, own) if meaning else own
            selected.append(f"({sql})::FLOAT AS {column}")
        joined = _BLOCKS if has_ranks else ""
    return f"SELECT {', '.join(selected)} FROM scores {joined} WHERE status = 'ok'"


_BLOCKS = (
    "LEFT JOIN (SELECT shard AS _shard, block AS _block, count(*) - 1 AS _rivals FROM scores "
    "WHERE status = 'ok' GROUP BY ALL) ON shard = _shard AND block = _block"
)


def _rank_bin(rank: str) -> str:
    """SQL: null where a block is too small to tell."""
    share = f"{rank}::DOUBLE / _rivals"
    return (
        f"(CASE WHEN _rivals >= {_FEWEST_RIVALS} AND {rank} >= 0 THEN "
        f"least(floor(2 * log2(1 + {_FINEST} * {share})), {2 * 10})::INT END)"
    )


def _meaning(connection: duckdb.DuckDBPyConnection, rank: str, value: str) -> dict[int, float]:
    """The mean value by bin of the rank."""
    rows = connection.execute(
        f"SELECT {_rank_bin(rank)} AS bin, avg({value}) FROM scores {_BLOCKS} "
        "WHERE status = 'ok' GROUP BY 1"
    ).fetchall()
    return {int(number): float(mean) for number, mean in rows if number is not None}


def _mapped(number: str, meaning: Mapping[int, float], otherwise: str) -> str:
    cases = " ".join(f"WHEN {one} THEN {mean!r}" for one, mean in sorted(meaning.items()))
    return f"CASE {number} {cases} ELSE {otherwise} END"
