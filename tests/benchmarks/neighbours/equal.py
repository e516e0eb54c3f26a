"""`ncclean neighbours` against its four searches by FAISS alone, in memory.

    python tests/benchmarks neighbours.equal [--pairs 60_000] [--dim 256] [--k 10]

The corpus is that of `neighbours.search`. FAISS's `IndexIVFFlat` has as many lists, and visits the
fewest that reach a recall of .95 on a sample; its processor seconds are those of one thread for
training, filling and searching. The command does more than search: near-duplicates, scores, files.
Its start is what it takes for a corpus of 100 pairs.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
from corpora import read_embeddings
from records import Row, benchmark

from ncclean.neighbour_search.inverted_lists import nlist_for
from neighbours.search import Simulation, searched

_SAMPLE, _RECALL, _TIE = 1000, 0.95, 1e-6
_SMALL = 100  # pairs, of a command that does little but start


def compare(
    pairs: int = 60_000, dim: int = 256, k: int = 10, seed: int = 0, scratch: Path | None = None
) -> Iterator[Row]:
    """The steps by FAISS; the command's run is a fact of the record."""
    options = ("--index", "ivf", "--k", k, "--workers", 1)
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ncclean-neighbours-", dir=scratch) as name:
        start = searched(Simulation(_SMALL, dim, seed), Path(name, "small"), *options)
        run = searched(Simulation(pairs, dim, seed), Path(name), *options)
        seconds = 0.0
        for row in by_faiss(Path(name, "embeddings"), k, seed):
            seconds += row["seconds"]
            yield row
    recalls = (run[name] for name in run if name.endswith("_recall") and "duplicate" not in name)
    return {
        "command_run": {
            "processor_seconds": run["processor_seconds"],
            "start_seconds": start["processor_seconds"],
            "faiss_seconds": round(seconds, 1),
            "lowest_recall": min(recalls),
        }
    }


def by_faiss(embeddings: Path, k: int, seed: int) -> Iterator[Row]:
    """The four searches of distinct vectors, and what trains and fills the two indexes."""
    vectors, indexes = {}, {}
    sides = dict(zip(("img", "text"), read_embeddings(embeddings), strict=False))
    for side in ("img", "text"):
        vectors[side] = np.random.default_rng(seed).permutation(np.unique(sides[side], axis=0))
        begin = time.process_time()
        count, dim = vectors[side].shape
        index = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(dim), dim, nlist_for(count), faiss.METRIC_INNER_PRODUCT
        )
        index.train(vectors[side])
        index.add(vectors[side])
        indexes[side] = index
        yield {"step": f"fill {side}", "seconds": time.process_time() - begin}
    for query, side in itertools.product(vectors, vectors):
        wanted, index = k + (query == side), indexes[side]
        sample = vectors[query][:_SAMPLE]
        exact, _ = faiss.knn(sample, vectors[side], wanted, faiss.METRIC_INNER_PRODUCT)
        for nprobe in range(1, index.nlist + 1):
            index.nprobe = nprobe
            recall = float((index.search(sample, wanted)[0] >= exact[:, -1:] - _TIE).mean())
            if recall >= _RECALL:
                break
        begin = time.process_time()
        index.search(vectors[query], wanted)
        seconds = time.process_time() - begin
        step = {"step": f"{side} by {query}", "nprobe": index.nprobe, "recall": recall}
        yield {**step, "seconds": seconds}


if __name__ == "__main__":
    benchmark(compare)
