"""The rows of a shard: samples with their captions, facts and scores, as a checked table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ncclean import schema
from ncclean.data.member_samples import sample_uid
from ncclean.data.samples import Caption, Sample, SkipReason
from ncclean.data.stream import DecodedSample, ShardStream
from ncclean.execution.further_columns import FurtherColumns
from ncclean.scoring.columns import BlockScores
from ncclean.scoring.stats import ShardStats

Whole = TypeVar("Whole", int, np.ndarray)


@dataclass
class ShardEmbeddings:
    """float16 (n, d) embeddings of the scorable pairs and the rows they belong to."""

    image: np.ndarray
    text: np.ndarray
    metadata: pa.Table


def place_of(row: Whole, caption: Whole) -> Whole:
    """Numbers that order pairs as the table does, of a row and a caption's number or of arrays."""
    place: Whole = (row << 16) + caption
    return place


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a sample with one of its captions."""

    decoded: DecodedSample
    caption: Caption

    @property
    def sample(self) -> Sample:
        return self.decoded.sample

    @property
    def status(self) -> SkipReason:
        """The sample's if that is not ok: without its image no caption has a score."""
        status = self.sample.status
        return self.caption.status if status is SkipReason.OK else status

    @property
    def error(self) -> str | None:
        return self.caption.error if self.sample.status is SkipReason.OK else self.sample.error


def captions_of(sample: Sample) -> list[Caption]:
    """A sample's captions, one without a text where it has none: that sample has a row, too."""
    return sample.captions or [Caption()]


def images_of_rows(scorable: Sequence[Row]) -> np.ndarray:
    """(n,) which image each pair has, of those that have a pair; samples are in their order."""
    begins = np.array(
        [row.sample is not before.sample for before, row in pairwise(scorable)], dtype=np.int64
    )
    return np.concatenate([[0], np.cumsum(begins)])[: len(scorable)].astype(np.int64)


def groups_of(facts: Mapping[str, pa.Array], ok: np.ndarray) -> np.ndarray | None:
    """The group of each pair that is `ok`; None if nothing is calibrated apart."""
    labels = facts.get("calibration_group")
    return None if labels is None else np.array(labels.to_pylist(), dtype=object)[ok]


def facts_of_rows(
    stream: ShardStream, samples: list[DecodedSample], rows: list[Row], *, with_text: bool
) -> dict[str, pa.Array]:
    """(n,) what the table says of each row beside its scores, by column.

    `samples` are all of the shard, to which the stream may have read fields after they passed.
    """
    shard = stream.shard.name
    for row, metadata in stream.late_metadata.items():
        fields = samples[row].sample.metadata
        fields.update({name: value for name, value in metadata.items() if name not in fields})
    records = [row.sample for row in rows]
    captions = [row.caption for row in rows]
    return {
        "uid": strings([sample_uid(r.metadata, shard, r.key) for r in records]),
        "shard": strings([shard] * len(records)),
        "key": strings([r.key for r in records]),
        "row": pa.array([r.row for r in records], pa.int32()),
        "caption_number": pa.array([caption.number for caption in captions], pa.int16()),
        "caption_key": strings([caption.key for caption in captions]),
        "text": strings([caption.text if with_text else None for caption in captions]),
        "url": strings([_text(r.metadata, "url") for r in records]),
        "width": pa.array([row.decoded.width for row in rows], pa.int32()),
        "height": pa.array([row.decoded.height for row in rows], pa.int32()),
        "status": strings([row.status.value for row in rows]),
        "error": strings([row.error for row in rows]),
        "is_noisy": pa.array([_flag(r.metadata.get("is_noisy")) for r in records], pa.bool_()),
        "noise_kind": strings([_text(r.metadata, "noise_kind") for r in records]),
    }


def score_table(
    facts: Mapping[str, pa.Array],
    *,
    ok: Sequence[bool] | np.ndarray,
    scores: BlockScores,
    further: Mapping[str, pa.Array],
) -> pa.Table:
    """A row for each pair: (n,) `facts` about it, the scores of the `ok`, `further` columns."""
    scored, columns = np.asarray(ok, dtype=bool), dict(facts)
    split = np.where(scores.ncu_forget, "forget", "retain")
    for name, of_scored in (
        ("similarity", scores.similarity),
        ("ncu_confidence", scores.ncu_confidence),
        ("ncu_split", split),
        ("disncl_clean", scores.disncl_clean),
        ("neg_clip_loss", scores.neg_clip_loss),
        ("i2t_rank", scores.i2t_rank),
        ("t2i_rank", scores.t2i_rank),
        ("block", scores.block),
    ):
        columns[name] = _scattered(of_scored, scored, schema.SCORES.field(name).type)
    columns.setdefault("calibration_group", pa.nulls(len(scored), pa.string()))
    for name in schema.CALIBRATED_COLUMNS:
        columns[name] = pa.nulls(len(scored), schema.SCORES.field(name).type)
    kinds = schema.with_further(pa.field(name, array.type) for name, array in further.items())
    columns |= further
    return pa.table([columns[name] for name in kinds.names], schema=kinds)


def further_rows(
    further: FurtherColumns, values: Mapping[str, pa.Array], ok: np.ndarray
) -> dict[str, pa.Array]:
    """The further columns of (n,) rows from the values of the m that are `ok`.

    A column without values, as of a shard without pairs, is null.
    """
    return {
        name: _scattered(values.get(name, pa.nulls(int(ok.sum()), kind)), ok, kind)
        for name, kind in further.types.items()
    }


def check_rows(table: pa.Table, stats: ShardStats, samples: int) -> None:
    """Every sample has a row for each caption; a bug that loses or doubles one must not pass."""
    rows = table.column("row").to_numpy().astype(np.int64)
    places = place_of(rows, table.column("caption_number").to_numpy())
    if not np.array_equal(np.unique(rows), np.arange(samples)) or (np.diff(places) <= 0).any():
        raise AssertionError(f"rows of the shard are not 0 to {samples - 1}, by caption")
    check_counts(table, stats)


def check_counts(table: pa.Table, stats: ShardStats) -> None:
    """Raise `AssertionError` unless the statuses account for all rows, and the scores for ok."""
    scored = table.num_rows - table.column("similarity").null_count
    if sum(stats.statuses.values()) != table.num_rows or scored != stats.ok:
        raise AssertionError(f"{scored} scored rows, but {stats.statuses} of {table.num_rows}")


def exported(table: pa.Table, image: torch.Tensor, text: torch.Tensor) -> ShardEmbeddings:
    """(m, d) embeddings of the scored rows of a table, to be written beside it."""
    ok = table.filter(pc.equal(table.column("status"), SkipReason.OK.value))
    metadata = ok.select(list(schema.EMBEDDING_METADATA_COLUMNS)).rename_columns(
        schema.EMBEDDING_METADATA.names
    )
    return ShardEmbeddings(image.half().cpu().numpy(), text.half().cpu().numpy(), metadata)


def _scattered(values: np.ndarray | pa.Array, ok: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Values of the scorable rows at their places, null elsewhere."""
    index = np.cumsum(ok) - 1
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return array.take(pa.array(index, mask=~ok))


def strings(values: list[str | None] | list[str]) -> pa.Array:
    """Arrow's strings, also where all are None."""
    return pa.array(values, pa.string())


def _text(metadata: dict[str, object], name: str) -> str | None:
    value = metadata.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return bool(value) if isinstance(value, int) and value in (0, 1) else None
