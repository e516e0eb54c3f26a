"""The sample of an audit: which pairs to judge, in which order, and how much each stands for."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import __version__
from ncclean.atomic import published
from ncclean.auditing.answers import Design
from ncclean.auditing.table import AuditTable
from ncclean.errors import InputError
from ncclean.output_mark import mark
from ncclean.storage.tables import table_metadata
from ncclean.text_files import parse_json

_DESIGN = "audit_design"  # key of the file's metadata
# Of sample.parquet, in this order.
COLUMNS = (
    "uid", "stratum", "weight", "shard", "key", "row", "caption_number", "noise_probability",
    "text", "url",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """`rows` in the order in which to judge them, with `stratum` and `weight` = N_h / n_h."""

    rows: pa.Table
    design: Design

    def drawn(self) -> np.ndarray:
        """(S,) number of pairs drawn from each stratum."""
        return np.bincount(self.rows.column("stratum").to_numpy(), minlength=len(self.design.pairs))

    def metadata(self, seed: int) -> dict[str, str]:
        """How the sample was drawn, for the files about it; `read_design` reads it."""
        return {
            _DESIGN: json.dumps(self.design.to_json()),
            "seed": str(seed),
            "ncclean_version": __version__,
            "made_by": mark("audit"),
        }

    def write(self, out: UPath, seed: int) -> None:
        """Write `sample.parquet`, for judges that do not use the page."""
        table = self.rows.select(COLUMNS).replace_schema_metadata(self.metadata(seed))
        with published(out) as aside:
            pq.write_table(table, aside, compression="zstd")


def draw_sample(table: AuditTable, answers: int, seed: int) -> Sample:
    """Draw about `answers` pairs to judge from the strata of a score table; all if there are fewer.

    Each stratum is a simple random sample by a hash of seed and uid. Pairs are ordered so that the
    first m hold each stratum in its share, for any m: a person may stop early.
    """
    strata = table.strata()
    rows, pairs = table.draw(strata.bounds, strata.allocated(answers), seed)
    stratum = rows.column("stratum").to_numpy()
    drawn = np.bincount(stratum, minlength=len(pairs))
    weight = np.array(pairs) / np.maximum(drawn, 1)
    # Where in its stratum's sequence a pair stands, from 0 to 1; chance decides within a place.
    chance = np.random.default_rng(seed).random(len(rows))
    place = (rows.column("place_in_stratum").to_numpy() + chance) / drawn[stratum]
    rows = rows.append_column("weight", pa.array(weight[stratum])).take(pa.array(place.argsort()))
    return Sample(rows, Design(strata.bounds, np.array(pairs)))


def read_design(path: str) -> Design:
    """Read the design of a `sample.parquet` or `judge.parquet`.

    Raises `InputError` for another file.
    """
    text = table_metadata(path).get(_DESIGN)
    if text is None:
        raise InputError(f"{path} is not a sample.parquet of `ncclean audit`")
    return Design.of(parse_json(text, path), path)
