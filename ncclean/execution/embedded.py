"""Scores shards of embeddings: what an estimator would have made of images is there already."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import torch

from ncclean import schema
from ncclean.columns import PairBatch
from ncclean.config import ScoreOptions
from ncclean.data.embeddings.pairs import (
    EmbeddedPairs,
    embedding_dim,
    images_of,
    read_pairs,
    statuses,
)
from ncclean.data.embeddings.units import vector_keys
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.execution.engine import (
    EmbeddingRequest,
    ModelRequest,
    PartWriter,
    ShardOutcome,
    ShardTask,
    Speed,
)
from ncclean.execution.first_pass import CorpusFacts
from ncclean.execution.further_columns import BatchColumns, FurtherColumns, batches
from ncclean.execution.in_process import InProcessEngine, one_behind
from ncclean.execution.shard_rows import (
    check_counts,
    exported,
    further_rows,
    groups_of,
    score_table,
)
from ncclean.execution.shift import noise_shift
from ncclean.execution.task import ShardResult, failed_result
from ncclean.models.estimator import ModelIdentity
from ncclean.scoring.columns import BlockScores, MapBlocks, caption_numbers, score_pairs
from ncclean.scoring.pool import Pool, sample_numbers
from ncclean.scoring.stats import ShardStats
from ncclean.storage.grouping import group_labels, names_in

logger = logging.getLogger(__name__)

# What the cosines of the blocks that are scored at once may take on a CPU.
_BLOCKS_BYTES = 2 << 30


def embedding_request(
    shards: Sequence[ShardRef],
    keys: tuple[str, str] | None,
    scale: float | ModelRequest,
    device: str = "auto",
) -> EmbeddingRequest:
    """The request for shards of embeddings, whose width the first readable one tells.

    `scale` is what cosines are multiplied by in a softmax, or the model that has it; the model is
    loaded here, once. Raises `InputError` if no shard can be read, `ModelError` for the model.
    """
    chosen = vector_keys(shards, keys)
    try:
        dim = embedding_dim(shards, chosen)
    except ShardError as error:
        raise InputError(f"no embeddings can be read: {error}") from error
    if isinstance(scale, ModelRequest):
        identity = dataclasses.replace(scale.load().identity, precision="")
        return EmbeddingRequest(identity=identity, keys=chosen, dim=dim, device=device, model=scale)
    identity = ModelIdentity("embeddings", "", "", "", scale)
    return EmbeddingRequest(identity=identity, keys=chosen, dim=dim, device=device)


class EmbeddingEngine(InProcessEngine):
    """Scores shards of embeddings in order in this process; see `Engine`."""

    def __init__(
        self,
        request: EmbeddingRequest,
        options: ScoreOptions,
        further: FurtherColumns | None = None,
    ) -> None:
        self._request = request
        self._options = options
        self._device = torch.device("cpu" if request.device == "auto" else request.device)
        self._cores = torch.get_num_threads()
        self._further = further or FurtherColumns(options)
        self._further.check_dim(request.dim)
        self._corpus: CorpusFacts | None = None
        if self._further.words is not None:
            raise InputError(
                "--words encodes altered captions, which takes a model: score the images instead "
                "of their embeddings"
            )

    @property
    def identity(self) -> ModelIdentity:
        """The model that the embeddings come from, as far as the request says."""
        return self._request.identity

    def run(
        self,
        tasks: Sequence[ShardTask],
        writer: PartWriter,
        on_done: Callable[[ShardRef, ShardOutcome], None],
        on_progress: Callable[[int], None] = lambda samples: None,
    ) -> None:
        """Score the shards in order, the next one read and the last one written meanwhile."""
        finished = 0
        if self._corpus is None:
            self._corpus = CorpusFacts.load(writer.work, self._options)

        def finish(task: ShardTask, result: ShardResult) -> None:
            on_done(task.shard, writer.write(task, result))

        shards = [task.shard for task in tasks]
        with (
            ThreadPoolExecutor(1, "ncclean-read") as reader,
            self._blocks_at_once() as each_block,
            one_behind() as finish_behind,
        ):
            ahead = [reader.submit(self._read, shard) for shard in shards[:1]]
            for task, following in itertools.zip_longest(tasks, shards[1:]):
                reading = ahead.pop()
                if following is not None:
                    ahead.append(reader.submit(self._read, following))
                result = self._score(task.shard, reading, each_block)
                finished += result.stats.rows
                on_progress(finished)
                finish_behind(functools.partial(finish, task, result))

    @contextmanager
    def _blocks_at_once(self) -> Iterator[MapBlocks]:
        """Scores a block on each core: a pass over one is too short to be split over them."""
        cores = min(self._cores, _BLOCKS_BYTES // (4 * self._options.block_size**2))
        if self._device.type != "cpu" or cores < 2:
            yield map
            return
        with ThreadPoolExecutor(cores, "ncclean-blocks", torch.set_num_threads, (1,)) as pool:
            yield pool.map

    def speed(self) -> Speed:
        """Measure one block of random vectors."""
        size, dim = self._options.block_size, self._request.dim
        vectors = torch.nn.functional.normalize(torch.randn(size, dim), dim=1).numpy()
        pairs = EmbeddedPairs(
            pa.table(
                {
                    "uid": [str(row) for row in range(size)],
                    "shard": ["00000"] * size,
                    "caption_number": np.zeros(size, np.int16),
                }
            ),
            pa.table({}),
            np.ones(size, dtype=bool),
            vectors,
            vectors,
        )
        if self._options.pool is not None:
            self._corpus = CorpusFacts(_random_pool(self._options.pool, dim))
        self._scores(pairs)
        start = time.perf_counter()
        self._scores(pairs)
        seconds = time.perf_counter() - start
        return Speed(
            pairs_per_second=size / seconds,
            device=str(self._device),
            precision="fp32",
            embedding_dim=dim,
        )

    def estimate_shift(self, seed: int, tolerance: float) -> float:
        """The cosine on noise of the model that the scale is from.

        Raises `InputError` if no model is known.
        """
        if self._request.model is None:
            raise InputError(
                "embeddings alone do not tell the shift on noise: give it as a number, use "
                "`--shift shuffled`, or name the model with --scale"
            )
        return noise_shift(self._request.model.load(), seed, tolerance)

    def _read(self, shard: ShardRef) -> EmbeddedPairs:
        return read_pairs(
            shard,
            self._request.keys,
            dim=self._request.dim,
            caption_key=self._options.caption_key,
            further=sorted(names_in(self._options.calibrate_by or "")),
        )

    def _score(
        self, shard: ShardRef, reading: Future[EmbeddedPairs], each_block: MapBlocks
    ) -> ShardResult:
        start = time.perf_counter()
        try:
            pairs = reading.result()
            return self._result(pairs, start, each_block)
        except InputError:
            raise
        except ShardError as error:
            return failed_result(str(error), self._further)
        except torch.OutOfMemoryError as error:
            raise InputError(f"out of memory on {self._device}; use --device cpu") from error
        except Exception as error:
            logger.debug("shard %s failed", shard.name, exc_info=True)
            return failed_result(f"{type(error).__name__}: {error}", self._further)

    def _result(self, pairs: EmbeddedPairs, start: float, each_block: MapBlocks) -> ShardResult:
        columns = BatchColumns(self._further)
        further = further_rows(self._further, self._further_values(pairs, columns), pairs.ok)
        groups = None
        if self._options.calibrate_by is not None:
            groups = self._groups(pairs, further, self._options.calibrate_by)
        scores = self._scores(pairs, groups, each_block)
        count = len(pairs.facts)
        status = np.full(count, "ok", dtype=object)
        error = np.full(count, None, dtype=object)
        for row, (reason, what) in pairs.problems.items():
            status[row], error[row] = reason.value, what
        facts: dict[str, pa.Array] = {
            **{name: pairs.facts.column(name) for name in pairs.facts.column_names},
            "status": pa.array(status, pa.string()),
            "error": pa.array(error, pa.string()),
        }
        if groups is not None:
            facts["calibration_group"] = groups
        captions = facts["text"]
        if not self._options.text:
            facts["text"] = pa.nulls(count, pa.string())
        table = score_table(facts, ok=pairs.ok, scores=scores, further=further)
        seconds = time.perf_counter() - start
        counted = dict(statuses(pairs))
        stats = ShardStats(count, counted, seconds, pairs.error, columns.failures)
        check_counts(table, stats)
        embeddings = None
        if self._options.embeddings is not None:
            with_text = table.set_column(table.schema.get_field_index("text"), "text", captions)
            sides = torch.from_numpy(pairs.image), torch.from_numpy(pairs.text)
            embeddings = exported(with_text, *sides)
        return ShardResult(table, stats, scores.distributions, embeddings)

    def _further_values(self, pairs: EmbeddedPairs, columns: BatchColumns) -> dict[str, pa.Array]:
        """Those of functions, heads and captions, of the pairs that have vectors."""
        if not self._further.types:
            return {}
        facts = pairs.facts.filter(pa.array(pairs.ok))
        captions = facts.column("text").to_pylist()
        image, text = (torch.from_numpy(side).float() for side in (pairs.image, pairs.text))
        for piece in batches(len(facts), self._options.batch_size):
            of_piece = text[piece]
            batch = PairBatch(
                [caption or "" for caption in captions[piece]],
                image[piece],
                None,
                facts.slice(piece.start, piece.stop - piece.start).to_pylist(),
                lambda of_piece=of_piece: of_piece,  # type: ignore[misc]
            )
            columns.add(range(piece.start, piece.stop), batch)
        values = columns.in_order() | self._further.of_pairs(image, captions, None)
        if self._options.canonical and self._corpus is not None:
            cosines = self._corpus.canonical_similarity(pairs)
            if cosines is not None:
                values[schema.CANONICAL.name] = pa.array(cosines)
        return values

    @staticmethod
    def _groups(pairs: EmbeddedPairs, further: Mapping[str, pa.Array], sql: str) -> pa.Array:
        """The group of each pair."""
        metadata = dict(zip(pairs.metadata.column_names, pairs.metadata.columns, strict=True))
        facts = dict(zip(pairs.facts.column_names, pairs.facts.columns, strict=True))
        return group_labels(sql, pa.table({**metadata, **facts, **further}))

    def _scores(
        self,
        pairs: EmbeddedPairs,
        groups: pa.Array | None = None,
        each_block: MapBlocks = map,
    ) -> BlockScores:
        """The scores of the pairs of each shard that the metadata names, in blocks of its own.

        A file may hold several shards of images: their blocks are those of the shards.
        """
        names = pairs.facts.column("shard").filter(pa.array(pairs.ok)).combine_chunks()
        encoded = names.dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        of_shard = np.asarray(encoded.indices)
        images = images_of(pairs.facts.filter(pa.array(pairs.ok)))
        captions = None
        if "text" in pairs.facts.column_names:
            texts = pairs.facts.column("text").filter(pa.array(pairs.ok))
            captions = caption_numbers(texts.to_pylist())
        of_group = groups_of({} if groups is None else {"calibration_group": groups}, pairs.ok)
        every = BlockScores.empty(len(of_shard))
        pool = self._corpus.pool if self._corpus is not None else None
        samples = np.empty(0, np.uint64)
        if pool is not None:
            uids = pairs.facts.column("uid").filter(pa.array(pairs.ok))
            samples = sample_numbers(uids.to_pylist())
        image, text = torch.from_numpy(pairs.image), torch.from_numpy(pairs.text)
        for number, name in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(of_shard == number)
            index = slice(None) if len(rows) == len(of_shard) else torch.from_numpy(rows)
            every.put(
                rows,
                score_pairs(
                    image[index].to(self._device),
                    text[index].to(self._device),
                    scale=self.identity.scale,
                    shard=name,
                    block_size=self._options.block_size,
                    forget_percent=self._options.forget_percent,
                    seed=self._options.seed,
                    images=None if images is None else images[rows],
                    captions=None if captions is None else captions[rows],
                    groups=None if of_group is None else of_group[rows],
                    pool=None if pool is None else (pool, samples[rows]),
                    each_block=each_block,
                ),
            )
        return every


def _random_pool(size: int, dim: int) -> Pool:
    """As large as the one of a run, to measure the speed with."""
    vectors = torch.nn.functional.normalize(torch.randn(size, dim), dim=1)
    return Pool(vectors, vectors, np.arange(size, dtype=np.uint64))
