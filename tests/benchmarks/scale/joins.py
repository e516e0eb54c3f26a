"""Time and peak memory of `ncclean select` with a joined table and a mixture of two ranks.

    python tests/benchmarks scale.joins [--rows 10_000_000] [--joined N] [--memory-limit 2GB]

The scores are simulated as by `scale.rows`; the joined table has the same uids in another order,
with a score of its own and LEMoN's. Each step is a process of its own, so that its peak memory is
its own. Needs about 250 bytes of disk per row while it runs.

`--only query struct struct-file` compares three ways to run one query that names `dfn.similarity`.
ncclean finds the columns that it reads in DuckDB's tree, and writes them, joined, to a file. In a
view whose column `dfn` is the joined row as a STRUCT, DuckDB finds them itself. Written to a file,
that view takes all columns, as nothing says which are read.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from command import BENCHMARK

SCORES, JOINED = "scores", "dfn.parquet"
MIXTURE = "0.5 * rank(similarity) + 0.5 * rank(dfn.similarity)"
_STRIDE = 7919  # prime, so a permutation of the rows wherever it does not divide their number


def write(folder: Path, rows: int, joined: int) -> None:
    """Final score files of `rows` pairs, and a table with a row for `joined` of them."""
    import duckdb

    from scale import rows as scale

    if rows % scale.PART_ROWS or rows % _STRIDE == 0 or joined > rows:
        raise SystemExit(f"--rows is a multiple of {scale.PART_ROWS:,}, --joined at most as many")
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
          FROM range({joined})
        ) TO '{folder / JOINED}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"""
    )


def column(folder: Path, memory_limit: str) -> None:
    """The best 30 % by a column of the joined table."""
    _select(folder, memory_limit, "dfn.similarity", [f"dfn={folder / JOINED}"])


def rank(folder: Path, memory_limit: str) -> None:
    """The best 30 % by two ranks of columns of the score table, without a join."""
    _select(folder, memory_limit, "rank(similarity) + rank(neg_clip_loss)", [])


def mixture(folder: Path, memory_limit: str) -> None:
    """The best 30 % by the ranks of both."""
    _select(folder, memory_limit, MIXTURE, [f"dfn={folder / JOINED}"])


QUERY = (
    "SELECT count(*) AS pairs, avg(dfn.similarity - similarity) AS difference, "
    "sum((dfn.lemon_score > 0.5)::INT) AS above FROM scores WHERE dfn.similarity > 0.25"
)


def query(folder: Path, memory_limit: str) -> None:
    """The query as `ncclean query --join` runs it."""
    from ncclean.storage.joined import query as run_query

    paths, joins = [str(folder / SCORES)], [f"dfn={folder / JOINED}"]
    print(json.dumps({"result": run_query(QUERY, paths, memory_limit, joins=joins).fetchall()}))


def struct(folder: Path, memory_limit: str, *, is_written: bool = False) -> None:
    """The query over a view whose column `dfn` is the joined row as a STRUCT.

    As ncclean does, it looks for repeated keys first, and counts the pairs with a joined row.
    """
    from ncclean.storage.joined import JoinedScores

    scores = JoinedScores.open([str(folder / SCORES)], [f"dfn={folder / JOINED}"], memory_limit)
    run = scores.connection.execute
    source = (
        "SELECT s.*, j AS dfn FROM _scores_alone AS s "
        "LEFT JOIN _joined_1 AS j ON s.uid::VARCHAR = j.uid::VARCHAR"
    )
    if is_written:
        scores.work.mkdir(parents=True)
        for name, order in (("joined", ""), ("sorted", "ORDER BY _place")):
            file = scores.work / f"{name}.parquet"
            run(f"SET preserve_insertion_order = {str(bool(order)).lower()}")
            run(
                f"COPY ({source} {order}) TO '{file}' "
                "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
            )
            source = f"SELECT * FROM read_parquet('{file}')"
    run(f"CREATE OR REPLACE TEMP VIEW scores AS {source}")
    partners = run("SELECT count(dfn._place) FROM scores").fetchall()[0][0]
    print(json.dumps({"result": run(QUERY).fetchall(), "partners": partners}))
    scores.close()


def struct_file(folder: Path, memory_limit: str) -> None:
    """The same, from a file of the joined rows in the order of the scores."""
    struct(folder, memory_limit, is_written=True)


STEPS = {
    "write": write,
    "column": column,
    "rank": rank,
    "mixture": mixture,
    "query": query,
    "struct": struct,
    "struct-file": struct_file,
}


def _select(folder: Path, memory_limit: str, score: str, join: list[str]) -> None:
    from ncclean_pipelines.select import Select

    from ncclean.selection.policy import Policy

    out = folder / "selection.parquet"
    out.unlink(missing_ok=True)
    summary = (
        Select(
            scores=[str(folder / SCORES)],
            out=str(out),
            policy=Policy(score=score, keep_fraction=0.3),
            join=join,
            memory_limit=memory_limit,
        )
        .run()
        .summary
    )
    print(json.dumps({"kept": summary.kept, **summary.joined}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--joined", type=int, help="rows of the joined table (default: --rows)")
    parser.add_argument("--memory-limit", default="2GB", help="of DuckDB")
    parser.add_argument("--json", type=Path, default=Path("join_speed.json"))
    parser.add_argument("--data", type=Path, help="folder of the simulated tables, which is kept")
    parser.add_argument("--only", nargs="+", default=["column", "rank", "mixture"])
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        name, folder, *rest = args.step
        STEPS[name](Path(folder), *[int(text) if text.isdigit() else text for text in rest])
        print(json.dumps({"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}))
        return
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="ncclean-join-") as scratch:
        folder = args.data or Path(scratch)
        joined = args.rows if args.joined is None else args.joined
        if not (folder / JOINED).exists():
            run(folder, "write", args.rows, joined)
        for step in args.only:
            results[step] = run(folder, step, args.memory_limit)
    # Here, since the steps are processes of their own that should load no more than they need.
    from records import make_record, write_record

    rows = [{"step": name, **figures} for name, figures in results.items()]
    settings = {"rows": args.rows, "joined": joined, "memory_limit": args.memory_limit}
    write_record(args.json, make_record(rows, settings=settings))


def run(folder: Path, step: str, *arguments: object) -> dict[str, Any]:
    """Seconds, peak memory and the peak of temporary files of one step."""
    spill = folder / "temporary"
    spill.mkdir(parents=True, exist_ok=True)
    sizes: list[int] = [0]
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(0.5):
            sizes.append(_size(spill))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [*BENCHMARK, "scale.joins", "--step", step, str(folder), *map(str, arguments)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(spill)},
        )
    finally:
        is_done.set()
        watcher.join()
    figures: dict[str, Any] = {"seconds": time.perf_counter() - begin}
    for line in done.stdout.splitlines():
        figures |= json.loads(line)
    figures["temporary_gb"] = max(sizes) / 1e9
    print(step, figures, flush=True)
    return figures


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # removed meanwhile
            continue
    return total


if __name__ == "__main__":
    main()
