"""Sum the values by group and stratum, in bounded memory, however many values there are.

A corpus of 100 million pairs has hundreds of millions of phrases and hosts. They are counted in two
passes. The first sums the values by a hash of the group's value, in `BUCKETS` buckets. The second
sums single groups, but only of buckets whose values exceed the expected ones: a group with a cause
makes its bucket one of these, whatever else falls into it. Some other buckets, selected by their
number, show how groups without a cause differ. If all buckets are small, all groups are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from ncclean.explaining.kinds import LENGTHS, Kind
from ncclean.explaining.pairs import Values

BUCKETS = 1 << 22
STRATA = len(LENGTHS)
_ALL_BUCKETS = 50_000  # up to this many are all examined
_SCREEN = 2.0  # standard deviations
_SAMPLED = 5_000  # buckets without excess, which show the spread


@dataclass(frozen=True)
class Totals:
    """Sums of V values over all pairs of a corpus, by stratum of caption length (S strata).

    `pairs` (S,) counts the pairs; `sums` and `squares` (V, S) sum the values and their squares. The
    values are an outcome's probability, or evidence for it. `shown` (V,) is the difference of a
    value's mean between wrong and right pairs, relative to that of the outcome's probability: 1 for
    the probability itself. It tells how well evidence distinguishes pairs.
    """

    pairs: np.ndarray
    sums: np.ndarray
    squares: np.ndarray
    shown: np.ndarray

    @classmethod
    def read(cls, connection: duckdb.DuckDBPyConnection, values: Values) -> Totals:
        """Sum the values of the view `pairs`."""
        names, owners = values.names(), values.owners()
        products = ["{0}::DOUBLE", "{0}::DOUBLE ** 2", "{0}::DOUBLE * {1}"]
        sums = "".join(
            f", sum({product.format(name, owner)})"
            for name, owner in zip(names, owners, strict=True)
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
        place = [names.index(name) for name in owners]
        wrong = np.maximum(of_all[0, place], 1e-9)  # expected number of wrong pairs
        right = np.maximum(pairs.sum() - wrong, 1e-9)
        among_wrong = of_all[2] / wrong
        difference = among_wrong - (of_all[0] - of_all[2]) / right
        shares = difference / np.maximum(difference[place], 1e-9)
        return cls(pairs, summed[0], summed[1], np.clip(shares, 0.0, 1.0))

    def of(self, columns: Sequence[int]) -> Totals:
        """Return the totals of some of the values, by their indices."""
        places = list(columns)
        return Totals(self.pairs, self.sums[places], self.squares[places], self.shown[places])

    @property
    def means(self) -> np.ndarray:
        """Return the (V, S) means of the values by stratum.

        An empty stratum has the mean of all pairs.
        """
        overall = self.sums.sum(axis=1, keepdims=True) / max(self.pairs.sum(), 1)
        means = self.sums / np.maximum(self.pairs, 1)
        filled: np.ndarray = np.where(self.pairs > 0, means, overall)
        return filled

    @property
    def variances(self) -> np.ndarray:
        """Return the (V, S) variances of the values by stratum, 0 for an empty one."""
        squares = self.squares / np.maximum(self.pairs, 1)
        variances: np.ndarray = np.maximum(squares - self.means**2, 1e-9) * (self.pairs > 0)
        return variances


@dataclass(frozen=True)
class Groups:
    """The G groups of one kind, such as the captions with a given word.

    Sums of V values by S strata of caption length: `values` (G,) names the groups, `pairs` (G, S)
    counts their pairs, `sums` (V, G, S) sums the values. `is_typical` (G,) marks groups that were
    not selected for their excess, which show how groups without a cause differ. `tested` is the
    number of groups with enough pairs, or an upper bound on it.
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
    """Sum the values of the groups of a kind that may have a cause and have `min_pairs` pairs.

    `values` are columns of the view `pairs`; `own` are those of them that are in excess wherever
    there is a cause. If there are many groups, only those in hash buckets whose `own` values exceed
    the expected ones are summed, and some others as typical groups.
    """
    screened = [n for n, name in enumerate(values) if name in own]
    # Captions of one length may all be in one group, whose mean is then that of its stratum.
    overall = totals.sums.sum(axis=1, keepdims=True) / max(totals.pairs.sum(), 1)
    expected = np.minimum(totals.means, overall)
    excess = ", ".join(
        f"{values[n]} - list_value({', '.join(map(repr, map(float, expected[n])))})"
        f"[stratum + 1] AS x{n}"
        for n in screened
    )
    buckets = _columns(
        connection.execute(
            f"SELECT (hash(value) % {BUCKETS})::INT AS bucket, count(*) AS pairs"
            f"{''.join(f', sum(x{n}) AS x{n}' for n in screened)} "
            f"FROM ({_source(kind, excess)}) GROUP BY 1 HAVING count(*) >= {min_pairs}"
        )
    )
    number, pairs = buckets["bucket"].astype(np.int32), buckets["pairs"]
    is_typical = np.ones(len(number), bool)
    chosen = is_typical.copy()
    if len(number) > _ALL_BUCKETS:
        is_typical = number % max(1, len(number) // _SAMPLED) == 0
        chosen = is_typical.copy()
        for n in screened:
            deviation = np.sqrt(totals.variances[n].max() * pairs)
            chosen |= buckets[f"x{n}"] > _SCREEN * deviation
    source = _source(kind, ", ".join(["stratum", *values]))
    sums = "".join(f", sum({name}::DOUBLE) AS s{n}" for n, name in enumerate(values))
    connection.register("looked_at", pa.table({"looked_at": number[chosen]}))
    rows = _columns(
        connection.execute(
            f"SELECT value, stratum, (hash(value) % {BUCKETS})::INT AS bucket, count(*) AS pairs"
            f"{sums} FROM ({source}) WHERE bucket IN (FROM looked_at) GROUP BY value, stratum"
            f" QUALIFY sum(count(*)) OVER (PARTITION BY value) >= {min_pairs}"
        )
    )
    connection.unregister("looked_at")
    names, first, group = np.unique(
        rows["value"].astype(object), return_index=True, return_inverse=True
    )
    counts = np.zeros((len(names), STRATA))
    summed = np.zeros((len(values), len(names), STRATA))
    strata = rows["stratum"].astype(int)
    counts[group, strata] = rows["pairs"]
    for n in range(len(values)):
        summed[n, group, strata] = rows[f"s{n}"]
    tested = len(names) if chosen.all() else int((pairs // min_pairs).sum())
    of_typical = np.isin(rows["bucket"][first], number[is_typical])
    return Groups(kind, names.tolist(), counts, summed, of_typical, tested)


def _source(kind: Kind, columns: str) -> str:
    """SQL for the pairs of each value: `value` and columns."""
    value = f"unnest({kind.value})" if kind.several else kind.value
    return f"SELECT * FROM (SELECT {value} AS value, {columns} FROM pairs) WHERE value IS NOT NULL"


def _columns(result: duckdb.DuckDBPyConnection) -> dict[str, np.ndarray]:
    return {name: np.asarray(column) for name, column in result.fetchnumpy().items()}
