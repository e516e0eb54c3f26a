"""Draw the sample of an audit: which pairs to judge, in which order, and their weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import __version__
from ncclean.auditing.answers import DESIGN, Design, Pair
from ncclean.auditing.strata import by_answer
from ncclean.auditing.table import AuditTable
from ncclean.base.atomic import published
from ncclean.base.output_mark import mark
from ncclean.base.text_files import parse_json
from ncclean.errors import InputError
from ncclean.storage.tables import table_metadata

# Columns of sample.parquet, in this order.
COLUMNS = (
    "uid", "stratum", "weight", "shard", "key", "row", "caption_number", "noise_probability",
    "text", "url",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A stratified sample of pairs to judge: `rows` in the order in which to judge them.

    A row has its `stratum` and its `weight`, the stratum's pairs divided by those drawn.
    """

    rows: pa.Table
    design: Design

    def drawn(self) -> np.ndarray:
        """Return the (S,) numbers of pairs drawn from each stratum."""
        return np.bincount(self.rows.column("stratum").to_numpy(), minlength=len(self.design.pairs))

    def metadata(self, seed: int) -> dict[str, str]:
        """Return metadata for the sample's files that say how it was drawn, for `read_design`."""
        return {
            DESIGN: json.dumps(self.design.to_json()),
            "seed": str(seed),
            "ncclean_version": __version__,
            "made_by": mark("audit"),
        }

    def write(self, out: UPath, seed: int) -> None:
        """Write the sample to `sample.parquet`, for judges that do not use the page."""
        table = self.rows.select(COLUMNS).replace_schema_metadata(self.metadata(seed))
        with published(out) as aside:
            pq.write_table(table, aside, compression="zstd")


def draw_sample(
    table: AuditTable, answers: int, seed: int, answered: Collection[Pair] = ()
) -> Sample:
    """Draw about `answers` pairs to judge from the strata of a score table, or all if fewer.

    Each stratum is a simple random sample by a hash of seed and uid. Pairs are ordered so that the
    first m hold each stratum in its share, for any m: a person may stop early. Pairs already
    `answered` are excluded: together with them, the sample remains random.

    If the table has a judge, pairs are drawn from those it answered, each stratum split by its
    answer, and more where judge and noise probability leave more doubt.
    """
    strata, by_judge = table.strata(), table.judge is not None
    judged = None
    cells = strata
    if by_judge:
        counts = table.counts(strata.bounds)[0]
        judged = counts.judged.sum(axis=1).astype(np.int64)
        cells = by_answer(strata, judged, counts.expected.sum(axis=1) / counts.pairs.sum(axis=1))
    draw = partial(table.draw, strata.bounds, seed=seed, by_judge=by_judge, without=set(answered))
    if answered:
        left = np.array(draw(np.zeros(len(cells), np.int64))[1])
        cells = dataclasses.replace(cells, pairs=left)
    rows, pairs = draw(cells.allocated(answers))
    if not len(rows):
        raise InputError("no pair is left to judge")
    cell = rows.column("stratum").to_numpy()
    drawn = np.bincount(cell, minlength=len(pairs))
    standing = strata.pairs if judged is None else _standing(strata.pairs, judged)
    weight = standing / np.maximum(drawn, 1)
    # The position of a pair in its stratum's sequence, from 0 to 1; ties are broken by chance.
    chance = np.random.default_rng(seed).random(len(rows))
    place = (rows.column("place_in_stratum").to_numpy() + chance) / drawn[cell]
    if by_judge:
        column = pa.array(cell // 3, pa.int32())
        rows = rows.set_column(rows.schema.get_field_index("stratum"), "stratum", column)
    rows = rows.append_column("weight", pa.array(weight[cell])).take(pa.array(place.argsort()))
    return Sample(rows, Design(strata.bounds, strata.pairs, judged))


def _standing(pairs: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Return (3 S,) pairs represented by those of each stratum and judge's answer."""
    standing: np.ndarray = pairs[:, None] * judged / np.maximum(judged.sum(axis=1), 1)[:, None]
    return standing.ravel()


def read_design(path: str) -> Design:
    """Read the design of the sample in a `sample.parquet` or `judge.parquet`.

    Raises `InputError` for another file.
    """
    text = table_metadata(path).get(DESIGN)
    if text is None:
        raise InputError(f"{path} is not a sample.parquet of `ncclean audit`")
    return Design.of(parse_json(text, path), path)
