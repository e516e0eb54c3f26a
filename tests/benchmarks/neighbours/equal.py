"""`ncclean neighbours` against its four searches by FAISS alone, in memory.

    python tests/benchmarks neighbours.equal [--pairs 60_000] [--dim 256] [--k 10]

The corpus is that of `neighbours.search`. FAISS's `IndexIVFFlat` has as many lists, and visits the
fewest that reach a recall of .95 on a sample; its processor seconds are those of one thread for
training, filling and searching. The command does more than search: near-duplicates, scores, files.
Its start is what it takes for a corpus of 100 pairs.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
from command import run_ncclean
from records import make_record, write_record

from ncclean.neighbour_search.inverted_lists import nlist_for
from neighbours.search import Simulation

_SAMPLE, _RECALL, _TIE = 1000, 0.95, 1e-6
_SMALL = 100  # pairs, of a command that does little but start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=60_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write a record")
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ncclean-neighbours-", dir=args.scratch) as name:
        folder = Path(name)
        Simulation(_SMALL, args.dim, args.seed).write(folder / "small")
        start = searched(folder / "small", args.k).processor_seconds
        Simulation(args.pairs, args.dim, args.seed).write(folder / "e")
        command = searched(folder / "e", args.k)
        rows = by_faiss(folder / "e", args.k, args.seed)
    result = {
        "processor_seconds": round(command.processor_seconds, 1),
        "start_seconds": round(start, 1),
        "faiss_seconds": round(sum(row["seconds"] for row in rows), 1),
        "lowest_recall": min(v for n, v in command.output.items() if n.endswith("_recall")
                             and "duplicate" not in n),
    }  # fmt: skip
    print(result, flush=True)
    if args.json is not None:
        settings = {name: getattr(args, name) for name in ("pairs", "dim", "k")}
        record = make_record(rows, settings=settings, seeds=[args.seed], command_run=result)
        write_record(args.json, record)


def searched(embeddings: Path, k: int):  # type: ignore[no-untyped-def]
    """Run the command in one process."""
    out = embeddings.with_name(f"{embeddings.name}.parquet")
    return run_ncclean(
        "neighbours", str(embeddings), "--out", str(out), "--index", "ivf", "--k", str(k),
        "--workers", "1",
    )  # fmt: skip


def by_faiss(embeddings: Path, k: int, seed: int) -> list[dict[str, float]]:
    """The four searches of distinct vectors, and what trains and fills the two indexes."""
    vectors, indexes, rows = {}, {}, []
    for side in ("img", "text"):
        files = sorted((embeddings / f"{side}_emb").glob("*.npy"))
        distinct = np.unique(np.concatenate([np.load(file) for file in files]), axis=0)
        vectors[side] = np.random.default_rng(seed).permutation(distinct).astype(np.float32)
        begin = time.process_time()
        count, dim = vectors[side].shape
        index = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(dim), dim, nlist_for(count), faiss.METRIC_INNER_PRODUCT
        )
        index.train(vectors[side])
        index.add(vectors[side])
        indexes[side] = index
        rows.append({"step": f"fill {side}", "seconds": time.process_time() - begin})
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
        rows.append({"step": f"{side} by {query}", "nprobe": index.nprobe, "recall": recall,
                     "seconds": seconds})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
