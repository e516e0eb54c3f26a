"""The encoder of embeddings, which only reads vectors that a CLIP model made earlier."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ncclean.base.config import DEFAULT_BATCH_SIZE, ScoreOptions
from ncclean.columns import PairBatch
from ncclean.data.embeddings.pairs import EmbeddedPairs, embedding_dim, images_of, read_pairs
from ncclean.data.embeddings.units import vector_keys
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.column_sources import BatchColumns, ColumnSources, slices
from ncclean.execution.corpus_facts import CorpusFacts
from ncclean.execution.device_faults import BatchSize
from ncclean.execution.encoded_shard import EncodedShard
from ncclean.execution.encoder import Encoding, OnProgress, Speed
from ncclean.execution.finish_shard import ShardScoring
from ncclean.execution.shift import NoiseShift, noise_shift
from ncclean.models.estimator import ModelIdentity
from ncclean.models.request import ModelRequest
from ncclean.scoring.pool import Pool
from ncclean.storage.grouping import names_in

# Memory on a CPU for the cosines of the blocks scored at once.
_BLOCKS_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class EmbeddingRequest:
    """A request to score embeddings in place of images, here or on a node.

    `identity` has what is known of their model, `dim` their width. `keys` are the names of image
    and caption vectors, see `ncclean.data.embeddings.units`; `model` is the one that made them, if
    available.
    """

    identity: ModelIdentity
    keys: tuple[str, str] | None
    dim: int
    device: str = "cpu"
    model: ModelRequest | None = None

    @classmethod
    def of(
        cls,
        shards: Sequence[ShardRef],
        keys: tuple[str, str] | None,
        scale: float | ModelRequest,
        device: str = "auto",
    ) -> EmbeddingRequest:
        """Describe shards of embeddings to score, as wide as the first readable one.

        `scale` is the factor of cosines in a softmax, or the model that has it; the model is loaded
        once, here. The device `auto` is the CPU, as no model computes. Raises `InputError` if no
        shard can be read, `ModelError` for the model.
        """
        device = "cpu" if device == "auto" else device
        chosen = vector_keys(shards, keys)
        try:
            dim = embedding_dim(shards, chosen)
        except ShardError as error:
            raise InputError(f"no embeddings can be read: {error}") from error
        if isinstance(scale, ModelRequest):
            # This is the model with the scale, which may not have made the embeddings.
            identity = dataclasses.replace(scale.load().identity, precision="", preprocessing="")
            return cls(identity=identity, keys=chosen, dim=dim, device=device, model=scale)
        identity = ModelIdentity("embeddings", "", "", "", scale, dim=dim)
        return cls(identity=identity, keys=chosen, dim=dim, device=device)

    def result_options(self) -> Mapping[str, Any]:
        """Return no further options: embeddings are scored as they are."""
        return {"compile": False}

    def open(self, options: ScoreOptions, columns: ColumnSources) -> EmbeddingEncoder:
        """Open an encoder of embeddings in this process."""
        return EmbeddingEncoder(self, options, columns)

    def absolute(self) -> EmbeddingRequest:
        """Return the request with absolute paths, for a worker with another working folder."""
        return dataclasses.replace(self, model=self.model and self.model.absolute())


class EmbeddingEncoder:
    """Reads shards of embeddings in order, each while the previous one is scored."""

    def __init__(
        self, request: EmbeddingRequest, options: ScoreOptions, columns: ColumnSources
    ) -> None:
        self._request = request
        self._options = options
        self._columns = columns
        self._cores = torch.get_num_threads()
        self.batch = BatchSize(options.batch_size or DEFAULT_BATCH_SIZE)

    @property
    def identity(self) -> ModelIdentity:
        """The model that computed the embeddings, as far as known."""
        return self._request.identity

    @property
    def device(self) -> str:
        """The device that computes the scores."""
        return self._request.device

    @property
    def facts(self) -> EncoderFacts:
        """The width of the embeddings, for the column sources."""
        return EncoderFacts(dim=self._request.dim, batch_size=self.batch.size)

    @property
    def blocks_at_once(self) -> int:
        """The number of blocks to score at once: one per core, as a block is too short to split."""
        if not self.device.startswith("cpu"):
            return 1
        return min(self._cores, _BLOCKS_BYTES // (4 * self._options.block_size**2))

    def encode(self, shards: Sequence[ShardRef], on_progress: OnProgress) -> Encoding:
        """Read each shard of embeddings; yield a function that completes it with user columns."""
        finished = 0
        with ThreadPoolExecutor(1, "ncclean-read") as reader:
            ahead = [reader.submit(self._read, shard) for shard in shards[:1]]
            pairs = itertools.zip_longest(shards, shards[1:])
            for number, (shard, following) in enumerate(pairs):
                reading = ahead.pop()
                if following is not None:
                    ahead.append(reader.submit(self._read, following))
                if reading.exception() is None:
                    finished += len(reading.result().facts)
                yield number, functools.partial(self._complete, shard, reading)
                on_progress(finished)

    def speed(self) -> Speed:
        """Measure the scoring speed on one block of random embeddings."""
        size, dim = self._options.block_size, self._request.dim
        vectors = torch.nn.functional.normalize(torch.randn(size, dim), dim=1)
        nothing = pa.nulls(size, pa.string())
        facts = {
            "uid": pa.array([str(row) for row in range(size)]),
            "shard": pa.array(["00000"] * size),
            "text": nothing,
        }
        shard = EncodedShard(
            name="00000",
            facts=facts,
            ok=np.ones(size, dtype=bool),
            image=vectors,
            text=vectors,
            metadata=pa.table({}),
        )
        pool = None if self._options.pool is None else _random_pool(self._options.pool, dim)
        scoring = ShardScoring(
            options=self._options,
            columns=self._columns,
            encoder=dataclasses.replace(self.facts, corpus=CorpusFacts(pool)),
            scale=self.identity.scale,
            device=self.device,
        )
        scoring.scores(shard)
        start = time.perf_counter()
        scoring.scores(shard)
        return Speed(
            pairs_per_second=size / (time.perf_counter() - start),
            device=self.device,
            precision="fp32",
            embedding_dim=dim,
        )

    def estimate_shift(self, seed: int, tolerance: float) -> NoiseShift:
        """Return the mean cosine on noise of the model that `--scale` names.

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

    def _complete(self, shard: ShardRef, reading: Future[EmbeddedPairs]) -> EncodedShard:
        start = time.perf_counter()
        pairs = reading.result()
        count = len(pairs.facts)
        status = np.full(count, SkipReason.OK.value, dtype=object)
        error = np.full(count, None, dtype=object)
        for row, (reason, what) in pairs.problems.items():
            status[row], error[row] = reason.value, what
        columns = dict(
            zip(pairs.facts.column_names, pairs.facts.combine_chunks().columns, strict=True)
        )
        columns |= {"status": pa.array(status, pa.string()), "error": pa.array(error, pa.string())}
        batches = BatchColumns(self._columns)
        encoded = EncodedShard(
            name=shard.name,
            facts=columns,
            ok=pairs.ok,
            image=torch.from_numpy(pairs.image),
            text=torch.from_numpy(pairs.text),
            metadata=pairs.metadata,
            images=images_of(pairs.facts.filter(pa.array(pairs.ok))),
            error=pairs.error,
        )
        if self._columns.wants_batches:
            for places, batch in self._batches(pairs):
                batches.add(places, batch)
            encoded.values, encoded.failures = batches.in_order(), batches.failures
        encoded.seconds = time.perf_counter() - start
        return encoded

    def _batches(self, pairs: EmbeddedPairs) -> Iterator[tuple[range, PairBatch]]:
        """Return the pairs that have vectors, for functions of `--columns`, and their places."""
        facts = pairs.facts.filter(pa.array(pairs.ok))
        captions = facts.column("text").to_pylist()
        image, text = (torch.from_numpy(side).float() for side in (pairs.image, pairs.text))
        for piece in slices(len(facts), self.batch.size):
            batch = PairBatch(
                [caption or "" for caption in captions[piece]],
                image[piece],
                None,
                facts.slice(piece.start, piece.stop - piece.start).to_pylist(),
                _constant(text[piece]),
            )
            yield range(piece.start, piece.stop), batch


def _constant(vectors: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: vectors


def _random_pool(size: int, dim: int) -> Pool:
    """Return a pool of random vectors, as large as a run's, to measure the speed with."""
    vectors = torch.nn.functional.normalize(torch.randn(size, dim), dim=1)
    return Pool(vectors, vectors, np.arange(size, dtype=np.uint64))
