"""Turn an encoded shard into its part: further columns, scores, the table, and statistics.

Keeps and writes nothing, so it can be rerun after any failure.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ncclean.base import schema
from ncclean.base.config import ScoreOptions
from ncclean.data.fingerprints import fingerprints_of
from ncclean.data.samples import SkipReason
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.encoded_shard import EncodedShard, Values, scattered
from ncclean.scoring.columns import BlockScores, MapBlocks, caption_numbers, score_pairs
from ncclean.scoring.pool import sample_numbers
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.grouping import group_labels

_TRACED = 4  # entries of a traceback


@dataclass
class ShardEmbeddings:
    """The float16 (n, d) embeddings of a shard's n pairs, and the rows they belong to."""

    image: np.ndarray
    text: np.ndarray
    metadata: pa.Table


@dataclass
class ShardResult:
    """The score table of a shard, and the statistics that finalize and the summary need."""

    table: pa.Table
    stats: ShardStats
    distributions: Distributions
    embeddings: ShardEmbeddings | None


@dataclass(frozen=True, kw_only=True)
class ShardScoring:
    """Computes the columns, scores, table and statistics of encoded shards.

    `scale` multiplies cosines in a softmax. `each_block` is `map`, or that of an executor.
    """

    options: ScoreOptions
    columns: ColumnSources
    encoder: EncoderFacts
    scale: float
    device: str
    each_block: MapBlocks = map

    def finish(self, shard: EncodedShard) -> ShardResult:
        """Compute the score table and the statistics of an encoded shard."""
        start = time.perf_counter()
        values = shard.values
        self.columns.add_to(shard, self.encoder)
        facts = dict(shard.facts)
        if self.options.calibrate_by is not None:
            metadata = dict(zip(shard.metadata.column_names, shard.metadata.columns, strict=True))
            # For a place column, a corpus field of the same name takes precedence.
            stated = {name for name in schema.PLACE_COLUMNS if name in metadata}
            columns = {name: fact for name, fact in facts.items() if name not in stated}
            groupable = {**metadata, **columns, **self._rows(values, shard.ok)}
            labels = group_labels(self.options.calibrate_by, pa.table(groupable))
            facts["calibration_group"] = labels
        scores = self.scores(shard, facts.get("calibration_group"))
        self.columns.add_to(shard, self.encoder, scores)
        if not self.options.text:
            for columns, name in ((facts, "text"), (values, "worst_part")):
                if name in columns:
                    columns[name] = pa.nulls(len(columns[name]), pa.string())
        table = score_table(facts, shard.ok, scores, self._rows(values, shard.ok))
        stats = ShardStats(
            rows=len(table),
            statuses=_counts(table.column("status")),
            seconds=shard.seconds + time.perf_counter() - start,
            error=shard.error,
            column_failures=shard.failures,
            captions_cut=shard.captions_cut,
            context_length=shard.context_length,
            further=shard.further,
            times={**shard.times, "score": time.perf_counter() - start},
            bytes=table.nbytes,
            sources=fingerprints_of(shard.metadata.schema),
        )
        check_counts(table, stats)
        embeddings = None
        if self.options.embeddings is not None:
            embeddings = exported(table, shard.image, shard.text)
        return ShardResult(table, stats, scores.distributions, embeddings)

    def scores(self, shard: EncodedShard, groups: pa.Array | None = None) -> BlockScores:
        """Score the pairs of a shard; those of each shard of images in blocks of their own.

        A file of embeddings may hold several shards of images. `groups` are (n,) labels.
        """
        ok = pa.array(shard.ok)
        names = shard.facts["shard"].filter(ok).dictionary_encode()
        if isinstance(names, pa.ChunkedArray):
            names = names.combine_chunks()
        of_shard = np.asarray(names.indices)
        captions = caption_numbers(shard.captions)
        labels = None
        if groups is not None:
            labels = np.array(groups.to_pylist(), dtype=object)[shard.ok]
        pool, samples = self.encoder.corpus.pool, np.empty(0, np.uint64)
        if pool is not None:
            samples = sample_numbers(shard.of_pairs("uid"))
        all_scores = BlockScores(len(of_shard))
        for number, name in enumerate(names.dictionary.to_pylist()):
            rows = np.flatnonzero(of_shard == number)
            index = slice(None) if len(rows) == len(of_shard) else torch.from_numpy(rows)
            all_scores.put(
                rows,
                score_pairs(
                    shard.image[index].to(self.device),
                    shard.text[index].to(self.device),
                    scale=self.scale,
                    shard=name,
                    block_size=self.options.block_size,
                    forget_percent=self.options.forget_percent,
                    seed=self.options.seed,
                    images=None if shard.images is None else shard.images[rows],
                    captions=captions[rows],
                    groups=None if labels is None else labels[rows],
                    pool=None if pool is None else (pool, samples[rows]),
                    each_block=self.each_block,
                ),
            )
        return all_scores

    def failed(self, reason: str) -> ShardResult:
        """Return the result of a shard in which no pair could be scored."""
        return failed_result(reason, self.columns)

    def _rows(self, values: Values, ok: np.ndarray) -> Values:
        """Spread (m,) further columns of the scorable pairs over (n,) rows; null without them."""
        return {
            name: scattered(values.get(name, pa.nulls(int(ok.sum()), kind)), ok, kind)
            for name, kind in self.columns.types.items()
        }


def _counts(values: pa.ChunkedArray) -> dict[str, int]:
    return {one["values"]: one["counts"] for one in pc.value_counts(values).to_pylist()}


def failed_result(
    reason: str, columns: ColumnSources, error: BaseException | None = None
) -> ShardResult:
    """Return the result of a shard without scored pairs; `error` is what this process met."""
    trace = ""
    if error is not None:
        lines = traceback.format_exception(error)[-_TRACED:]
        trace = f"process {os.getpid()} on {socket.gethostname()}\n{''.join(lines)}"
    table = schema.with_further(columns.fields).empty_table()
    stats = ShardStats(0, {}, 0.0, reason, trace=trace)
    return ShardResult(table, stats, Distributions(), None)


def score_table(
    facts: Mapping[str, pa.Array],
    ok: np.ndarray,
    scores: BlockScores,
    further: Mapping[str, pa.Array],
) -> pa.Table:
    """Assemble the score table of a shard from facts about its rows, scores and further columns."""
    columns = dict(facts)
    for name, values in scores.columns.items():
        columns[name] = scattered(values, ok, schema.SCORES.field(name).type)
    for column in schema.SCORES:  # columns for finalize, and scores of a shard without pairs
        columns.setdefault(column.name, pa.nulls(len(ok), column.type))
    kinds = schema.with_further(pa.field(name, array.type) for name, array in further.items())
    columns |= further
    return pa.table([columns[name] for name in kinds.names], schema=kinds)


def check_counts(table: pa.Table, stats: ShardStats) -> None:
    """Raise `AssertionError` unless statuses add up to the rows, and scores to the usable pairs."""
    scored = table.num_rows - table.column("similarity").null_count
    if sum(stats.statuses.values()) != table.num_rows or scored != stats.ok:
        raise AssertionError(f"{scored} scored rows, but {stats.statuses} of {table.num_rows}")


def exported(table: pa.Table, image: torch.Tensor, text: torch.Tensor) -> ShardEmbeddings:
    """Return (m, d) embeddings of a score table's scored rows, as written beside it."""
    ok = table.filter(pc.equal(table.column("status"), SkipReason.OK.value))
    metadata = ok.select(list(schema.EMBEDDING_METADATA_COLUMNS)).rename_columns(
        schema.EMBEDDING_METADATA.names
    )
    return ShardEmbeddings(image.half().cpu().numpy(), text.half().cpu().numpy(), metadata)
