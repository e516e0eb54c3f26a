"""Search embeddings in a process: pairs near to words, or to the image of a pair.

Every vector is compared, straight from the mapped files: a million of 512 dimensions take a core a
sixth of a second, so no index needs to be made, kept and trusted. The process holds some twenty
bytes a pair, and the model after the first words.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ncclean.base.options import usable_cores
from ncclean.data.embeddings.pairs import EmbeddedPairs, read_pairs
from ncclean.data.fingerprints import Fingerprints, agreed, changed_shards, fingerprints_of
from ncclean.errors import InputError, NccleanError, ShardError
from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import encode_text, padded_lengths
from ncclean.reviewing.search import CAPTION, IMAGE, Task
from ncclean.storage.catalog import connect

_ROWS = 2048  # vectors compared at a time, in float32
_THREADS = 4
_NOT_TAGS = ("bundled", "hub", "local")  # if a model has its weights
_COMPARED = 8  # captions to re-encode as a check
_LIKE = 0.9  # minimum cosine of two embeddings of a caption, at any precision
_ALONE, _PLACE = "_scores_alone", "_place"


@dataclass(frozen=True)
class Query:
    """A query of a search: words, or the image of a row, to compare with one side of all pairs.

    `place` is that of the row. The answer has the `nearest` rows; without it, all cosines are
    written to the Parquet file `out`.
    """

    side: str = IMAGE
    words: str = ""
    place: int | None = None
    nearest: int = 0
    out: str = ""


class PairVectors:
    """The embeddings of a score table's pairs, found by the places of its rows.

    `captions` are a few captions with the numbers of their vectors. Unreadable shards are omitted,
    and named in `unread`. `changed` are the shards of images that changed between the encoding and
    the scoring.
    """

    def __init__(self, task: Task) -> None:
        self._folder, self._dim, self._count = Path(task.folder), task.dim, 0
        self._pool = one_core_each(usable_cores())
        self._sides: dict[str, list[np.ndarray]] = {side: [] for side in (IMAGE, CAPTION)}
        self.captions: dict[str, int] = {}
        self.unread: list[str] = []
        connection = connect(
            task.files, task.memory_limit, view=_ALONE, place=_PLACE, work=self._folder, is_own=True
        )
        connection.execute("CREATE TABLE vectors (uid VARCHAR, number SMALLINT, vector BIGINT)")
        encoded: list[Fingerprints] = []
        for shard in task.shards:
            try:
                pairs = read_pairs(shard, task.keys, dim=task.dim)
            except ShardError:
                self.unread.append(shard.name)
                continue
            if pairs.error is not None:
                self.unread.append(shard.name)
                continue
            encoded.append(fingerprints_of(pairs.facts.schema))
            connection.register("arrived", self._add(pairs))
            connection.execute("INSERT INTO vectors SELECT * FROM arrived")
        self.changed = changed_shards(task.scored, agreed(encoded))
        # If several vectors have one name, the first counts.
        rows = connection.execute(
            f"SELECT {_PLACE} AS place, min(vector) AS vector FROM {_ALONE} AS scores "
            f"JOIN vectors ON scores.uid = vectors.uid AND coalesce({task.number}, 0) = "
            "vectors.number GROUP BY ALL ORDER BY ALL"
        ).fetchnumpy()
        connection.close()
        self.places, self._vectors = rows["place"], rows["vector"]

    def cosines(self, vector: np.ndarray, side: str) -> np.ndarray:
        """Return (P,) cosines of a (d,) vector with one side of the P pairs at `places`."""
        cosines, query = torch.empty(self._count), torch.from_numpy(vector)
        ends = np.cumsum([0, *map(len, self._sides[side])]).tolist()

        def compare(number: int) -> None:
            # Fresh memory pages would cost more than the arithmetic.
            rows, matrix = torch.empty(_ROWS, self._dim), self._sides[side][number]
            for begin in range(0, len(matrix), _ROWS):
                stored = torch.from_numpy(matrix[begin : begin + _ROWS])
                out = cosines[ends[number] + begin :][: len(stored)]
                torch.mv(rows[: len(stored)].copy_(stored), query, out=out)

        list(self._pool.map(compare, range(len(self._sides[side]))))
        of_pairs: np.ndarray = cosines.numpy()[self._vectors]
        return of_pairs

    def image_of(self, place: int) -> np.ndarray:
        """Return the (d,) float32 image vector of the row at a place.

        Raises `InputError` if the row has none.
        """
        at = np.searchsorted(self.places, place)
        if at == len(self.places) or self.places[at] != place:
            raise InputError("the embeddings do not have this pair")
        return self.vector(int(self._vectors[at]), IMAGE)

    def vector(self, number: int, side: str) -> np.ndarray:
        """Return the (d,) float32 vector of one side with this number."""
        for matrix in self._sides[side]:
            if number < len(matrix):
                break
            number -= len(matrix)
        vector: np.ndarray = np.asarray(matrix[number], np.float32)
        return vector

    def _add(self, pairs: EmbeddedPairs) -> pa.Table:
        """Add the vectors of a shard; return the names and numbers of its usable pairs."""
        facts = pairs.facts.filter(pa.array(pairs.ok))
        numbers = range(self._count, self._count + len(facts))
        if not self.captions:
            texts = facts.column("text")[:_COMPARED].to_pylist()
            self.captions = {text: n for text, n in zip(texts, numbers, strict=False) if text}
        self._count += len(facts)
        for side, matrix in ((IMAGE, pairs.image), (CAPTION, pairs.text)):
            self._sides[side].append(self._mapped(matrix))
        return facts.select(["uid", "caption_number"]).append_column(
            "vector", pa.array(numbers, pa.int64())
        )

    def _mapped(self, matrix: np.ndarray) -> np.ndarray:
        """Return the vectors as a mapped file: their own, or a copy in float16."""
        if isinstance(matrix, np.memmap) or not len(matrix):
            return matrix
        file = self._folder / f"vectors-{uuid.uuid4().hex}.npy"
        np.save(file, matrix.astype(np.float16))
        copy: np.ndarray = np.load(file, mmap_mode="c")
        return copy


class WordSearch:
    """Answers search queries about pairs; the model is loaded for the first words."""

    def __init__(self, task: Task) -> None:
        self._vectors, self._task = PairVectors(task), task
        self.unread, self.changed = self._vectors.unread, self._vectors.changed
        self._estimator: Estimator | None = None
        self._loading = threading.Lock()

    def answer(self, query: Query) -> dict[str, Any]:
        """Answer a search query with the places and cosines of the nearest pairs, or an `error`.

        The answer is empty if all cosines are written to a file.
        """
        try:
            words, place = query.words, query.place
            vector = self._encoded(words) if place is None else self._vectors.image_of(place)
            cosines = self._vectors.cosines(vector, query.side)
        except (NccleanError, OSError, RuntimeError) as error:
            return {"error": str(error)}
        places = self._vectors.places
        if not query.nearest:
            pq.write_table(
                pa.table({"place": places, "value": cosines}),
                query.out,
                compression="none",
                use_dictionary=False,
            )
            return {}
        count = min(query.nearest, len(cosines))
        nearest = np.argpartition(-cosines, count - 1)[:count] if count else np.arange(0)
        nearest = nearest[np.argsort(-cosines[nearest], kind="stable")]
        return {"places": places[nearest].tolist(), "cosines": cosines[nearest].tolist()}

    def _encoded(self, words: str) -> np.ndarray:
        with self._loading:
            if self._estimator is None:
                self._estimator = self._loaded()
        # Alone: the estimator's batches, with always equal last digits, cost ten times as much.
        tokens = self._estimator.tokenize([words])
        length = int(padded_lengths(tokens)) if self._estimator.trims_text else tokens.shape[1]
        with torch.inference_mode():
            vector: np.ndarray = encode_text(self._estimator.model, tokens[:, :length])[0].numpy()
        return vector

    def _loaded(self) -> Estimator:
        """Load the model. Raises `InputError` unless it reproduces the embeddings of captions."""
        model = self._task.model
        if not model or model == "embeddings":
            raise InputError("the table does not name the model of its embeddings: add --model")
        tag, _, space = (self._task.pretrained or "").partition(", ")
        try:
            estimator = Estimator.load(
                model,
                None if tag in _NOT_TAGS or os.path.exists(model) else tag or None,
                precision="fp32",
                device="cpu",
                space=space.removesuffix(" space") or "auto",
            )
        except NccleanError as error:
            raise InputError(f"{error} (review takes --model and --pretrained)") from error
        captions = self._vectors.captions
        encoded = estimator.encode_text(list(captions)).cpu().numpy()
        stored = [self._vectors.vector(number, CAPTION) for number in captions.values()]
        is_as_wide = encoded.shape[1] == self._task.dim
        if not is_as_wide or (stored and np.einsum("nd,nd->n", encoded, stored).mean() < _LIKE):
            raise InputError(
                f"the embeddings are not those of {model}: name their model with review --model"
            )
        return estimator


def one_core_each(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads in each of which torch uses one core.

    On a busy machine, torch's own threads would wait for each other.
    """
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


def main() -> None:
    """Answer search queries on standard input, lines of JSON, until it is closed."""
    task = pickle.load(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print
    search = WordSearch(task)
    problems = {"unread": search.unread, "changed": search.changed}
    facts = {name: [len(shards), *shards[:1]] for name, shards in problems.items()}
    answers.write(json.dumps({"id": None, **facts}) + "\n")

    def answer(line: bytes) -> None:
        fields = json.loads(line)
        number = fields.pop("id")
        answers.write(json.dumps({"id": number, **search.answer(Query(**fields))}) + "\n")

    with one_core_each(_THREADS) as pool:
        for line in sys.stdin.buffer:
            pool.submit(answer, line)
    os._exit(0)
