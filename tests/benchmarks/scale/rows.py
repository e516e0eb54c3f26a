"""A hundred million score rows on a small machine: finalize, queries, a selection, a report.

    python tests/benchmarks scale.rows [--rows 100_000_000] [--shards 100_000] [--json FILE]

And what a driver does with many shards: it lists `--listed` of them and plans an export, and reads
a manifest of `--shards`.

Each step is a process of its own, so that its peak memory is its own. Needs about 450 bytes of
disk per row while it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from command import BENCHMARK

PART_ROWS = 100_000
LIMIT = "2GB"  # of DuckDB, which with Python around it stays below 4 GB
NOISE = 0.2
QUERIES = {
    "failures by kind": "SELECT status, count(*) FROM scores GROUP BY 1",
    "noise by shard, worst ten": (
        "SELECT shard, avg(noise_probability) AS noise FROM scores GROUP BY 1 "
        "ORDER BY noise DESC LIMIT 10"
    ),
    "what three rules keep": (
        "SELECT count(*) FILTER (WHERE osa_weight > 0.5), "
        "count(*) FILTER (WHERE ncu_split = 'retain'), "
        "count(*) FILTER (WHERE disncl_clean) FROM scores"
    ),
    "most suspect hundred": (
        "SELECT uid, url, text, noise_probability FROM scores "
        "WHERE noise_probability > 0.99 ORDER BY similarity LIMIT 100"
    ),
}


def write(folder: Path, rows: int) -> None:
    """Parts and record of a run that has scored `rows` pairs, `PART_ROWS` to a shard."""
    import duckdb
    import numpy as np
    import torch
    from upath import UPath

    import ncclean
    from ncclean.base import schema
    from ncclean.base.config import ScoreOptions
    from ncclean.data.shards import ShardRef
    from ncclean.scoring.mixture import loss_histogram, pair_losses
    from ncclean.scoring.null import Histogram
    from ncclean.scoring.stats import Distributions, ShardStats
    from ncclean.storage.layout import ScoreLayout
    from ncclean.storage.parts import write_part
    from ncclean.storage.score_run import RunIdentity, ScoreRun
    from ncclean.storage.shard_records import ShardRecord

    layout = ScoreLayout(UPath(folder / "scores"))
    shards = [ShardRef(f"{n:06d}", f"{n:06d}.tar", 1, "") for n in range(rows // PART_ROWS)]
    identity = RunIdentity(
        model={"model": "simulated", "scale": "100.0"},
        options=ScoreOptions().result_options(),
        shards=shards,
        version=ncclean.__version__,
    )
    run = ScoreRun.open(layout, identity, overwrite=True)
    run.record_noise_shift(0.0)
    rng = np.random.default_rng(0)
    mismatched = Histogram.of(torch.from_numpy(rng.normal(0.1, 0.05, 1_000_000)))
    kinds = {field.name: field.type for field in schema.SCORES}
    words = ["red", "blue", "small", "old", "photo", "of", "a", "house", "dog", "boat", "on", "the"]
    captions = [" ".join(rng.choice(words, 10)) for _ in range(5000)]
    connection = duckdb.connect()
    connection.register("captions", __import__("pandas").DataFrame({"text": captions}))
    connection.execute("CREATE TABLE c AS SELECT row_number() OVER () - 1 AS i, text FROM captions")
    for number, shard in enumerate(shards):
        # Normal numbers by Box and Muller: DuckDB has uniform ones alone.
        table = connection.execute(
            f"""
            WITH drawn AS (
              SELECT range AS r, md5(CAST(range + {number * PART_ROWS} AS VARCHAR)) AS uid,
                random() < {NOISE} AS noisy, 1 - random() AS u, random() AS v,
                random() AS a, random() AS b
              FROM range({PART_ROWS}))
            SELECT uid, '{shard.name}' AS shard, lpad(CAST(r AS VARCHAR), 9, '0') AS key, r AS row,
              c.text AS text, 'https://images.example.org/' || uid || '.jpg' AS url,
              200 + 1800 * a AS width, 200 + 1800 * b AS height, 'ok' AS status,
              NULL AS error,
              CASE WHEN noisy THEN 0.1 ELSE 0.3 END + 0.05 * sqrt(-2 * ln(u)) * cos(2 * pi() * v)
                AS similarity,
              NULL AS osa_weight, NULL AS osa_noisy, a AS ncu_confidence,
              CASE WHEN b < 0.1 THEN 'forget' ELSE 'retain' END AS ncu_split,
              a < 0.5 AS disncl_clean,
              -(CASE WHEN noisy THEN 0.09 ELSE 0.02 END) * (0.5 + b) AS neg_clip_loss,
              CAST(100 * a * b AS INT) AS i2t_rank,
              CAST(100 * u * b AS INT) AS t2i_rank, NULL AS noise_probability,
              NULL AS null_p_value, r // 2048 AS block, noisy AS is_noisy
            FROM drawn JOIN c ON c.i = r % 5000 ORDER BY r
            """
        ).to_arrow_table()
        columns = [
            table.column(name).cast(kind, safe=False) if name in table.column_names else None
            for name, kind in kinds.items()
        ]
        import pyarrow as pa

        filled = [
            pa.nulls(len(table), kind) if column is None else column
            for column, kind in zip(columns, kinds.values(), strict=True)
        ]
        part = pa.table(filled, schema=schema.SCORES)
        matched = Histogram.of(torch.from_numpy(part.column("similarity").to_numpy().copy()))
        losses = loss_histogram(pair_losses(
            torch.from_numpy(part.column("neg_clip_loss").to_numpy().copy()), 100.0))  # fmt: skip
        stats = ShardStats(len(part), {"ok": len(part)}, seconds=1.0, bytes=part.nbytes)
        counted = Distributions(matched, mismatched, losses)
        record = ShardRecord(shard.name, shard.size, shard.version, stats, counted)
        write_part(layout.part(shard), part, record)
    run.close()


def finalize(folder: Path) -> None:
    from ncclean_pipelines.score import Score

    Score(shards=[], out=str(folder / "scores"), finalize_only=True).run()


def query(folder: Path, sql: str) -> None:
    from ncclean.storage.joined import query

    print(query(sql, [str(folder / "scores")], LIMIT).fetchall()[:3], file=sys.stderr)


def select(folder: Path) -> None:
    """The best 30 % by the product's own select."""
    from ncclean_pipelines.select import Select

    from ncclean.selection.policy import Policy

    command = Select(
        scores=[str(folder / "scores")],
        out=str(folder / "selection.parquet"),
        policy=Policy(score="similarity", keep_fraction=0.3),
        memory_limit=LIMIT,
    )
    summary = command.run().summary
    if summary.kept != round(0.3 * summary.rows):
        raise AssertionError(f"{summary.kept} selected of {summary.rows}")


def report(folder: Path) -> None:
    from ncclean_pipelines.report import Report

    Report(scores=[str(folder / "scores")], out=str(folder / "report.html")).run()


def listing(folder: Path, shards: int) -> None:
    """The shards of a folder as references, and an export of a third of their samples planned."""
    from ncclean.data.shards import resolve_shards
    from ncclean.exporting.plan import plan_export

    names = folder / "listed"
    names.mkdir()
    for number in range(shards):
        (names / f"{number:07d}.tar").touch()
    before, begin = _memory(), time.process_time()
    found = resolve_shards([str(names)])
    listed, held = time.process_time() - begin, _memory() - before
    tasks = plan_export({shard.name: 3333 for shard in found}, found, 10_000)
    print(json.dumps({
        "seconds": listed,
        "plan_seconds": time.process_time() - begin - listed,
        "tasks": len(tasks),
        "bytes_per_shard": held / shards,
        "bytes_per_shard_planned": (_memory() - before) / shards,
    }))  # fmt: skip
    shutil.rmtree(names)


def records(folder: Path, shards: int) -> None:
    """The records of many shards: written, and read again as a resumed run does."""
    import numpy as np
    from upath import UPath

    from ncclean.base.config import ScoreOptions
    from ncclean.data.shards import ShardRef
    from ncclean.scoring.null import BINS, Histogram
    from ncclean.scoring.stats import Distributions, ShardStats
    from ncclean.storage.layout import ScoreLayout
    from ncclean.storage.score_run import RunIdentity, ScoreRun
    from ncclean.storage.shard_records import ShardRecord

    layout = ScoreLayout(UPath(folder / "large"))
    names = [ShardRef(f"{n:06d}", f"s3://bucket/corpus/{n:06d}.tar", 1, "e" * 32)
             for n in range(shards)]  # fmt: skip
    identity = RunIdentity(
        model={"model": "simulated", "scale": "100.0"},
        options=ScoreOptions().result_options(),
        shards=names,
        version="simulated",
    )
    before = _memory()
    made = ScoreRun.open(layout, identity, overwrite=True)
    counts = np.zeros(BINS, dtype=np.int64)
    counts[2000:2600] = np.random.default_rng(0).integers(0, 100, 600)
    distributions = Distributions(*[Histogram(counts, 1) for _ in range(3)])
    stats = ShardStats(10_000, {"ok": 9_950, "image_corrupt": 50}, 9.0)
    made.write_list(
        (one.name, ShardRecord(one.name, one.size, one.version, stats, distributions).to_json())
        for one in names
    )
    made.close()
    begin = time.perf_counter()
    again = ScoreRun.load(layout)
    seconds = time.perf_counter() - begin
    assert again is not None
    assert len(again.done) == shards
    print(json.dumps({
        "list_mb": layout.shard_list.stat().st_size / 1e6,
        "load_seconds": seconds,
        "memory_mb_for_two_runs": (_memory() - before) / 1e6,
    }))  # fmt: skip


def _memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--shards", type=int, default=100_000, help="of the large run")
    parser.add_argument("--listed", type=int, default=1_000_000, help="shards of a folder")
    parser.add_argument("--json", type=Path, default=Path("scale.json"))
    parser.add_argument("--scratch", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        name, folder, *rest = args.step
        function = {"write": write, "finalize": finalize, "query": query, "select": select,
                    "report": report, "listing": listing, "records": records}[name]  # fmt: skip
        function(Path(folder), *[int(x) if x.isdigit() else x for x in rest])
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = used.ru_utime + used.ru_stime
        print(json.dumps({"peak_gb": used.ru_maxrss / 1e6, "processor_seconds": seconds}))
        return
    folder = Path(tempfile.mkdtemp(prefix="ncclean-scale-", dir=args.scratch))
    results: dict[str, dict[str, float]] = {}
    try:
        run(results, "write parts", "write", folder, args.rows)
        results["write parts"]["bytes_per_row"] = _size(folder / "scores") / args.rows
        run(results, "finalize", "finalize", folder)
        results["finalize"]["rows_per_second"] = args.rows / results["finalize"]["seconds"]
        results["finalize"]["bytes_per_row"] = _size(folder / "scores") / args.rows
        for name, sql in QUERIES.items():
            run(results, f"query: {name}", "query", folder, sql)
        run(results, "top 30 % selection", "select", folder)
        run(results, "report", "report", folder)
        run(results, f"{args.listed:,} shards listed", "listing", folder, args.listed)
        run(results, f"records of {args.shards:,} shards", "records", folder, args.shards)
    finally:
        # Here, since the steps are processes of their own that should load no more than they need.
        from records import make_record, write_record

        rows = [{"step": name, **figures} for name, figures in results.items()]
        settings = {"rows": args.rows, "shards": args.shards, "memory_limit": LIMIT}
        write_record(args.json, make_record(rows, settings=settings))
        shutil.rmtree(folder)


def run(results: dict[str, dict[str, float]], name: str, step: str, *arguments: object) -> None:
    begin = time.perf_counter()
    done = subprocess.run(
        [*BENCHMARK, "scale.rows", "--step", step, *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: dict[str, float] = {"seconds": time.perf_counter() - begin}
    for line in done.stdout.splitlines():
        figures |= json.loads(line)
    results[name] = figures
    print(name, {key: round(value, 2) for key, value in figures.items()}, flush=True)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
