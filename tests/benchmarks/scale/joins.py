"""Time and peak memory of `ncclean select` with a joined table and a mixture of two ranks.

    python tests/benchmarks scale.joins [--rows 10_000_000] [--memory-limit 2GB]

The scores are simulated as by `scale.rows`; the joined table has the same uids in another order,
with a score of its own and LEMoN's. Each step is a process of its own, so that its peak memory is
its own. Needs about 250 bytes of disk per row while it runs.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from process import in_process
from records import Row, benchmark

SCORES, JOINED = "scores", "dfn.parquet"
POLICIES = {
    "column": ("dfn.similarity", True),
    "rank": ("rank(similarity) + rank(neg_clip_loss)", False),
    "mixture": ("0.5 * rank(similarity) + 0.5 * rank(dfn.similarity)", True),
}
_STRIDE = 7919  # prime, so a permutation of the rows wherever it does not divide their number


def write(folder: Path, rows: int) -> None:
    """Final score files of `rows` pairs, and a table with a row for each of them."""
    import duckdb

    from scale import rows as scale

    scale.write(folder, rows)
    scale.finalize(folder)
    connection = duckdb.connect()
    connection.execute("SET memory_limit = '1GB'")
    connection.execute(
        f"""COPY (
          SELECT md5(CAST((range * {_STRIDE}) % {rows} AS VARCHAR)) AS uid,
            (0.3 + 0.05 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()))::FLOAT
              AS similarity,
            random()::FLOAT AS lemon_score
          FROM range({rows})
        ) TO '{folder / JOINED}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"""
    )


def select(folder: Path, memory_limit: str, score: str, is_joined: bool) -> Row:
    """The best 30 % by a score: how many, and what was joined."""
    os.environ["TMPDIR"] = str(folder / "temporary")
    from ncclean_pipelines.select import Select

    from ncclean.selection.policy import Policy

    summary = Select(
        scores=[str(folder / SCORES)],
        out=str(folder / "selection.parquet"),
        policy=Policy(score=score, keep_fraction=0.3),
        join=[f"dfn={folder / JOINED}"] if is_joined else [],
        memory_limit=memory_limit,
        overwrite=True,
    ).run().summary  # fmt: skip
    return {"kept": summary.kept, **summary.joined}


def joins(
    rows: int = 10_000_000, memory_limit: str = "2GB", data: Path | None = None,
    only: tuple[str, ...] = tuple(POLICIES),
) -> Iterator[Row]:  # fmt: skip
    """A row for each policy; the tables in `data` are kept."""
    with tempfile.TemporaryDirectory(prefix="ncclean-join-") as scratch:
        folder = data or Path(scratch)
        spill = folder / "temporary"
        spill.mkdir(parents=True, exist_ok=True)
        if not (folder / JOINED).exists():
            in_process(write, folder, rows)
        for step in only:
            with Spilt(spill) as spilt:
                figures = in_process(select, folder, memory_limit, *POLICIES[step])
            result = figures.pop("result")
            yield {"step": step, **figures, **result, "temporary_gb": spilt.most / 1e9}


class Spilt:
    """The most bytes that a folder has held since it was entered."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._is_done, self.most = folder, threading.Event(), 0
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> Spilt:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._is_done.wait(0.5):
            self.most = max(self.most, sum(map(size_of, self._folder.rglob("*"))))


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where it has been removed meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    benchmark(joins)
