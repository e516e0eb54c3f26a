"""Sums of the values by group and stratum, in bounded memory, however many values there are.

A corpus of 100 million pairs has hundreds of millions of phrases and hosts. DuckDB adds them up in
one pass a kind, into a table that it puts on disk as it grows. Where very many groups have enough
pairs, those are read in which the values exceed what is expected of them; some others, taken by
their hash, show how groups without a cause differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np

from ncclean.explaining.kinds import LENGTHS, Kind
from ncclean.explaining.pairs import Values

STRATA = len(LENGTHS)
_ALL_GROUPS = 50_000  # so many are all read
_SCREEN = 2.0  # standard deviations
_SAMPLED = 5_000  # groups, whatever their excess, of which the spread is taken


@dataclass(frozen=True)
class Totals:
    """Sums over all pairs: (S,) pairs, (V, S) sums and (V, S) sums of squares by stratum.

    `shown` (V,) is the part of a group's excess that each value has where pairs are wrong: 1 for
    an outcome's own value. It tells how well evidence tells pairs apart.
    """

    pairs: np.ndarray
    sums: np.ndarray
    squares: np.ndarray
    shown: np.ndarray

    @classmethod
    def read(cls, connection: duckdb.DuckDBPyConnection, values: Values) -> Totals:
        """Add up the view `pairs`."""
        names, own = values.names(), values.owners()
        products = ["{0}::DOUBLE", "{0}::DOUBLE ** 2", "{0}::DOUBLE * {1}"]
        sums = "".join(
            f", sum({product.format(name, by)})"
            for name, by in zip(names, own, strict=True)
            for product in products
        )
        rows = connection.execute(
            f"SELECT stratum, count(*){sums} FROM pairs GROUP BY 1"
        ).fetchall()
        pairs = np.zeros(STRATA)
        summed = np.zeros((3, len(names), STRATA))
        for stratum, count, *numbers in rows:
            pairs[stratum] = count
            summed[:, :, stratum] = np.reshape(numbers, (-1, 3)).T
        of_all = summed.sum(axis=2)
        place = [names.index(name) for name in own]
        wrong = np.maximum(of_all[0, place], 1e-9)  # expected number of wrong pairs
        right = np.maximum(pairs.sum() - wrong, 1e-9)
        among_wrong = of_all[2] / wrong
        difference = among_wrong - (of_all[0] - of_all[2]) / right
        shown = difference / np.maximum(difference[place], 1e-9)
        return cls(pairs, summed[0], summed[1], np.clip(shown, 0.0, 1.0))

    def of(self, columns: Sequence[int]) -> Totals:
        """The totals of some of the values."""
        places = list(columns)
        return Totals(self.pairs, self.sums[places], self.squares[places], self.shown[places])

    @property
    def means(self) -> np.ndarray:
        """(V, S) means; that of all pairs for a stratum without any."""
        overall = self.sums.sum(axis=1, keepdims=True) / max(self.pairs.sum(), 1)
        means = self.sums / np.maximum(self.pairs, 1)
        filled: np.ndarray = np.where(self.pairs > 0, means, overall)
        return filled

    @property
    def variances(self) -> np.ndarray:
        """(V, S) variances of the values of a stratum."""
        squares = self.squares / np.maximum(self.pairs, 1)
        variances: np.ndarray = np.maximum(squares - self.means**2, 1e-9) * (self.pairs > 0)
        return variances


@dataclass(frozen=True)
class Groups:
    """The groups of one kind: `values` (G,), (G, S) `pairs`, (V, G, S) `sums`.

    `is_typical` (G,) marks those that were not chosen for their excess. `tested` is the number of
    groups with enough pairs, of which these are some or all.
    """

    kind: Kind
    values: list[str]
    pairs: np.ndarray
    sums: np.ndarray
    is_typical: np.ndarray
    tested: int


def group_sums(
    connection: duckdb.DuckDBPyConnection,
    kind: Kind,
    values: Sequence[str],
    own: Sequence[str],
    totals: Totals,
    min_pairs: int,
) -> Groups:
    """Add up the values of all groups of a kind that have `min_pairs` pairs and may have a cause.

    `values` are columns of the view `pairs`, `own` those that exceed wherever there is a cause.
    """
    sums = "".join(f", sum({name}::DOUBLE) AS s{n}" for n, name in enumerate(values))
    value = f"unnest({kind.value})" if kind.several else kind.value
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE sums AS SELECT value, stratum, count(*) AS pairs{sums} "
        f"FROM (SELECT {value} AS value, stratum, {', '.join(values)} FROM pairs) "
        "WHERE value IS NOT NULL GROUP BY value, stratum"
    )
    enough = f"FROM sums GROUP BY value HAVING sum(pairs) >= {min_pairs}"
    ((tested,),) = connection.execute(f"SELECT count(*) FROM (SELECT value {enough})").fetchall()
    step = 1 if tested <= _ALL_GROUPS else max(1, tested // _SAMPLED)
    # Captions of a length may all be of one group, whose mean is then that of its stratum.
    overall = totals.sums.sum(axis=1, keepdims=True) / max(totals.pairs.sum(), 1)
    expected = np.minimum(totals.means, overall).tolist()
    exceeds = " OR ".join(
        f"sum(s{n} - pairs * {expected[n]}[stratum + 1]) > "
        f"{_SCREEN} * sqrt({float(totals.variances[n].max())!r} * sum(pairs))"
        for n, name in enumerate(values)
        if name in own
    )
    rows = connection.execute(
        f"SELECT sums.*, is_typical FROM sums JOIN (SELECT value, hash(value) % {step} = 0 "
        f"AS is_typical {enough} AND (is_typical OR {exceeds})) USING (value)"
    ).fetchnumpy()
    connection.execute("DROP TABLE sums")
    names, first, at = np.unique(
        np.asarray(rows["value"], object), return_index=True, return_inverse=True
    )
    strata = np.asarray(rows["stratum"], int)
    counts = np.zeros((len(names), STRATA))
    summed = np.zeros((len(values), len(names), STRATA))
    counts[at, strata] = rows["pairs"]
    for n in range(len(values)):
        summed[n, at, strata] = rows[f"s{n}"]
    is_typical = np.asarray(rows["is_typical"], bool)[first]
    return Groups(kind, names.tolist(), counts, summed, is_typical, tested)
