"""The search by list against FAISS in memory, at the same lists and probes.

    python tests/benchmarks neighbours.equal [--pairs 300_000] [--dim 512] [--ray]

The corpus of `neighbours.py` is searched in tasks of 1 GB. Then FAISS gets the
same lists and, for a sample of queries, the same probes: the cosines must be the same up to
rounding, and the neighbours but for ties. With `--ray` the corpus is searched again on a cluster of
two nodes, whose driver is killed three times: all files must be those of the first search.

Processor seconds of one thread are those of all queries, here with reading and writing the files.
FAISS's are scaled from the sample: `IndexIVFFlat`, and `knn` of each list with the queries that
visit it, whose results are merged by `ResultHeap`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
from command import BENCHMARK
from faiss.contrib.ivf_tools import add_preassigned, search_preassigned
from records import ROOT, make_record, write_record
from threadpoolctl import threadpool_limits

from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.neighbour_search.block_tasks import ACROSS, WITHIN, Direction
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.coarse_quantizer import CoarseQuantizer
from ncclean.neighbour_search.inverted_lists import Vectors
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.search import find_neighbours
from ncclean.neighbour_search.search_tasks import nearest_of
from ncclean.progress import SILENT, Progress
from ncclean.runners.runner import InProcess, Runner
from ncclean.storage.array_files import ArrayFolder
from neighbours.search import Simulation

_K = 30
_QUERIES = 20_000
_CHUNK = 50_000
_KILLED_AT = ("lists-", "near-text-text-", "first-image-text-")  # when a file of this name is there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write a record")
    parser.add_argument("--ray", action="store_true", help="search on two nodes of Ray, too")
    parser.add_argument("--search", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search:
        from ncclean.runners.ray_runner import RayTasks

        with RayTasks(args.search[1], None) as runner:
            search(Path(args.search[0]), "ray", runner)
        return
    more = {}
    with tempfile.TemporaryDirectory(prefix="ncclean-neighbours-", dir=args.scratch) as name:
        folder = Path(name)
        Simulation(args.pairs, args.dim, args.seed).write(folder / "e")
        begin = time.process_time()
        with threadpool_limits(1):  # as a task on Ray: the last digit may depend on it
            work = search(folder, "work", InProcess(), clock := Clock())
        seconds = time.process_time() - begin
        print(f"searched in {seconds:.0f} s of processor time", flush=True)
        faiss.omp_set_num_threads(1)
        with threadpool_limits(1):
            results = [compared(work, one, args.dim, clock) for one in (*WITHIN, *ACROSS)]
        if args.ray:
            more["ray"] = {"nodes": 2, **on_two_nodes(folder, work)}
            print(more, flush=True)
    if args.json is not None:
        settings = {name: getattr(args, name) for name in ("pairs", "dim")}
        settings["processor_seconds"] = round(seconds)
        record = make_record(results, settings=settings, seeds=[args.seed], **more)
        write_record(args.json, record)


class Clock:
    """Takes the processor time of stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage, self._begin = "", time.process_time()

    def say(self, text: str) -> None:
        now = time.process_time()
        name = self._stage.split(",")[0]
        self.seconds[name] = self.seconds.get(name, 0) + now - self._begin
        self._stage, self._begin = text, now

    def advance(self, done: int, total: int, unit: str, **facts: object) -> None: ...

    def of(self, direction: Direction) -> float:
        """Seconds of all stages that search in a direction."""
        what = (
            f"{direction.index} neighbours" if direction.is_within
            else f"{direction.index} by {direction.query}"
        )  # fmt: skip
        return sum(self.seconds.get(f"{stage} {what}", 0) for stage in ("searching", "merging"))


def search(folder: Path, name: str, runner: Runner, progress: Progress = SILENT) -> ArrayFolder:
    """All that `ncclean neighbours` finds, in the files of a working folder."""
    work = ArrayFolder(str(folder / name))
    find_neighbours(
        embedded_blocks(resolve_embeddings([str(folder / "e")])),
        NeighbourOptions(index="ivf", k=_K), work, runner, memory_bytes=1 << 30,
        progress=progress,
    )  # fmt: skip
    return work


def on_two_nodes(folder: Path, work: ArrayFolder) -> dict[str, int]:
    """Search on Ray, the driver killed three times; how many files are those of `work`."""
    sys.path.insert(0, str(ROOT))
    from tests.execution import clusters

    killed = 0
    with clusters.cluster(folder / "site", [1, 1]) as made:
        command = [*BENCHMARK, "neighbours.equal", "--search", str(folder), made.address]
        for marker in _KILLED_AT:
            driver = subprocess.Popen(command)
            while driver.poll() is None and not _has_begun(folder / "ray", marker):
                time.sleep(0.1)
            killed += driver.poll() is None
            driver.kill()
            driver.wait()
        subprocess.run(command, check=True)
    again = ArrayFolder(str(folder / "ray"))
    names = work.names()
    if again.names() != names:
        raise AssertionError(f"other files: {again.names() ^ names}")
    return {
        "killed": killed,
        "files": len(names),
        "same": sum(_same(work, again, n) for n in names),
    }


def _has_begun(folder: Path, marker: str) -> bool:
    return folder.is_dir() and any(name.startswith(marker) for name in os.listdir(folder))


def _same(one: ArrayFolder, other: ArrayFolder, name: str) -> bool:
    expected, found = one.load(name), other.load(name)
    return expected.keys() == found.keys() and all(
        np.array_equal(array, found[key], equal_nan=array.dtype.kind == "f")
        for key, array in expected.items()
    )


def compared(work: ArrayFolder, direction: Direction, dim: int, clock: Clock) -> dict[str, object]:
    """How the neighbours of one direction differ from those of FAISS."""
    index_side, query_side = Vectors(work, direction.index), Vectors(work, direction.query)
    lists = CoarseQuantizer.of(work.load("learnt"), f"{direction.index}_")
    probes = int(work.load("lists-0")[f"{direction.name}_rank"].max()) + 1
    quantizer = faiss.IndexFlatIP(dim)
    quantizer.add(lists.lists)
    half = faiss.ScalarQuantizer.QT_fp16  # as the vectors are stored
    index = faiss.IndexIVFScalarQuantizer(
        quantizer, dim, len(lists), half, faiss.METRIC_INNER_PRODUCT, False
    )
    index.is_trained = True
    index.nprobe = probes
    count = int(index_side.bounds[-1])
    of_row = np.concatenate([
        work.load(f"assign-{block}")[f"{direction.index}_probed"][:, 0]
        for block in range(len(index_side.files))
    ]).astype(np.int64)  # fmt: skip
    for start in range(0, count, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, count))
        add_preassigned(index, index_side.take(rows), of_row[rows])
    rng = np.random.default_rng(1)
    total = int(query_side.bounds[-1])
    asked = np.sort(rng.choice(total, min(_QUERIES, total), replace=False))
    queries = query_side.take(asked)
    routes = lists.assign(queries, probes).astype(np.int64)
    coarse = np.take_along_axis(queries @ lists.lists.T, routes, axis=1).astype(np.float32)
    k = _K + direction.is_within
    expected, ids = search_preassigned(index, queries, k, routes, coarse)
    scale = total / len(asked)
    seconds = {
        "seconds": clock.of(direction),
        "faiss_ivf_flat_seconds": scale * in_flat_lists(index, queries, k, routes, coarse),
        "faiss_knn_seconds": scale * list_by_list(index_side, of_row, queries, k, routes),
    }
    if direction.is_within:
        keep = np.argsort(ids == asked[:, None], axis=1, kind="stable")[:, :_K]
        expected, ids = (np.take_along_axis(one, keep, axis=1) for one in (expected, ids))
    found = np.full(ids.shape, -1)
    cosines = np.full(ids.shape, np.nan, np.float32)
    groups = len(work.load("groups")[direction.index]) - 1
    for group in range(groups):
        rows, nearest = nearest_of(work, direction, group)
        chosen = np.flatnonzero(np.isin(asked, rows))
        places = np.searchsorted(rows, asked[chosen])
        found[chosen], cosines[chosen] = nearest.ids[places], nearest.cosines[places]
    result = {
        "direction": direction.name, "lists": len(lists), "probes": probes, "tasks": groups,
        "queries": len(asked), **{name: round(value, 1) for name, value in seconds.items()},
        "same_neighbours": float((found == ids).mean()),
        "largest_difference": float(np.abs(cosines - expected).max()),
    }  # fmt: skip
    print(result, flush=True)
    return result


def in_flat_lists(
    half: faiss.Index, queries: np.ndarray, k: int, routes: np.ndarray, coarse: np.ndarray
) -> float:
    """Seconds of FAISS with the vectors of an index in float32."""
    index = faiss.IndexIVFFlat(half.quantizer, half.d, half.nlist, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    lists, codec = half.invlists, half.sq
    for number in range(half.nlist):
        size = lists.list_size(number)
        if size:
            ids = faiss.rev_swig_ptr(lists.get_ids(number), size).copy()
            codes = faiss.rev_swig_ptr(lists.get_codes(number), size * half.code_size)
            vectors = codec.decode(codes.reshape(size, -1))
            add_preassigned(index, vectors, np.full(size, number), ids)
    index.nprobe = half.nprobe
    begin = time.process_time()
    search_preassigned(index, queries, k, routes, coarse)
    return time.process_time() - begin


def list_by_list(
    side: Vectors, of_row: np.ndarray, queries: np.ndarray, k: int, routes: np.ndarray
) -> float:
    """Seconds of FAISS's `knn`, a list at a time; the queries of a list are few in a sample."""
    order = np.argsort(of_row, kind="stable")
    starts = np.searchsorted(of_row[order], np.arange(int(of_row.max()) + 2))
    best = faiss.ResultHeap(len(queries), k, keep_max=True)
    seconds = 0.0
    for number in range(len(starts) - 1):
        rows = order[starts[number] : starts[number + 1]]
        asking = np.flatnonzero((routes == number).any(axis=1))
        if not len(rows) or not len(asking):
            continue
        vectors = side.take(rows)
        begin = time.process_time()
        cosines, places = faiss.knn(
            queries[asking], vectors, min(k, len(rows)), metric=faiss.METRIC_INNER_PRODUCT
        )
        best.add_result_subset(asking, cosines, rows[places])
        seconds += time.process_time() - begin
    best.finalize()
    return seconds


if __name__ == "__main__":
    main()
