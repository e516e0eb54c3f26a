"""A hundred million score rows on a small machine: finalize, queries, a selection, a report.

    python tests/benchmarks scale.rows [--rows 100_000_000] [--shards 100_000] [--json FILE]

And what a driver does with many shards: it lists `--listed` of them and plans an export, and reads
a manifest of `--shards`.

Each step is a process of its own, so that its peak memory is its own. Needs about 450 bytes of
disk per row while it runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from process import in_process
from records import Row, benchmark

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


def write(folder: Path, rows: int, part_rows: int = PART_ROWS) -> None:
    """Parts and record of a run that has scored `rows` pairs, `part_rows` to a shard."""
    import duckdb
    import numpy as np
    import pyarrow as pa
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
    shards = [ShardRef(f"{n:06d}", f"{n:06d}.tar", 1, "") for n in range(rows // part_rows)]
    model = {"model": "simulated", "scale": "100.0"}
    identity = RunIdentity(model, ScoreOptions().result_options(), shards, ncclean.__version__)
    run = ScoreRun.open(layout, identity, overwrite=True)
    run.record_noise_shift(0.0)
    rng = np.random.default_rng(0)
    mismatched = Histogram.of(torch.from_numpy(rng.normal(0.1, 0.05, 1_000_000)))
    words = ["red", "blue", "small", "old", "photo", "of", "a", "house", "dog", "boat", "on", "the"]
    captions = pa.table({
        "i": range(5000), "text": [" ".join(rng.choice(words, 10)) for _ in range(5000)]
    })  # fmt: skip
    connection = duckdb.connect()
    connection.register("captions", captions)
    for number, shard in enumerate(shards):
        # Normal numbers by Box and Muller: DuckDB has uniform ones alone.
        table = connection.execute(
            f"""
            WITH drawn AS (
              SELECT range AS r, md5(CAST(range + {number * part_rows} AS VARCHAR)) AS uid,
                random() < {NOISE} AS noisy, 1 - random() AS u, random() AS v,
                random() AS a, random() AS b
              FROM range({part_rows}))
            SELECT uid, '{shard.name}' AS shard, lpad(CAST(r AS VARCHAR), 9, '0') AS key, r AS row,
              c.text AS text, 'https://images.example.org/' || uid || '.jpg' AS url,
              200 + 1800 * a AS width, 200 + 1800 * b AS height, 'ok' AS status,
              CASE WHEN noisy THEN 0.1 ELSE 0.3 END + 0.05 * sqrt(-2 * ln(u)) * cos(2 * pi() * v)
                AS similarity, a AS ncu_confidence,
              CASE WHEN b < 0.1 THEN 'forget' ELSE 'retain' END AS ncu_split,
              a < 0.5 AS disncl_clean,
              -(CASE WHEN noisy THEN 0.09 ELSE 0.02 END) * (0.5 + b) AS neg_clip_loss,
              CAST(100 * a * b AS INT) AS i2t_rank, CAST(100 * u * b AS INT) AS t2i_rank,
              r // 2048 AS block, noisy AS is_noisy
            FROM drawn JOIN captions AS c ON c.i = r % 5000 ORDER BY r
            """
        ).to_arrow_table()
        columns = [
            table.column(field.name).cast(field.type, safe=False)
            if field.name in table.column_names
            else pa.nulls(len(table), field.type)
            for field in schema.SCORES
        ]
        part = pa.table(columns, schema=schema.SCORES)
        similarity, losses = (
            torch.from_numpy(part.column(name).to_numpy().copy())
            for name in ("similarity", "neg_clip_loss")
        )
        stats = ShardStats(len(part), {"ok": len(part)}, seconds=1.0, bytes=part.nbytes)
        counted = Distributions(
            Histogram.of(similarity), mismatched, loss_histogram(pair_losses(losses, 100.0))
        )
        record = ShardRecord(shard.name, shard.size, shard.version, stats, counted)
        write_part(layout.part(shard), part, record)
    run.close()


def finalize(folder: Path) -> None:
    from ncclean_pipelines.score import Score

    Score(shards=[], out=str(folder / "scores"), finalize_only=True).run()


def query(folder: Path, sql: str) -> None:
    from ncclean.storage.joined import query

    query(sql, [str(folder / "scores")], LIMIT).fetchall()


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


def listing(folder: Path, shards: int) -> dict[str, float]:
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
    figures = {
        "seconds": listed,
        "plan_seconds": time.process_time() - begin - listed,
        "tasks": len(tasks),
        "bytes_per_shard": held / shards,
        "bytes_per_shard_planned": (_memory() - before) / shards,
    }
    shutil.rmtree(names)
    return figures


def records(folder: Path, shards: int) -> dict[str, float]:
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
    return {
        "list_mb": layout.shard_list.stat().st_size / 1e6,
        "load_seconds": seconds,
        "memory_mb_for_two_runs": (_memory() - before) / 1e6,
    }


def _memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def steps(
    rows: int = 100_000_000, shards: int = 100_000, listed: int = 1_000_000,
    scratch: Path | None = None,
) -> Iterator[Row]:  # fmt: skip
    """A row for each step; `shards` are those of the large run, `listed` those of a folder."""
    with tempfile.TemporaryDirectory(prefix="ncclean-scale-", dir=scratch) as name:
        folder = Path(name)
        calls: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
            ("write parts", write, (rows,)),
            ("finalize", finalize, ()),
            *((f"query: {name}", query, (sql,)) for name, sql in QUERIES.items()),
            ("top 30 % selection", select, ()),
            ("report", report, ()),
            (f"{listed:,} shards listed", listing, (listed,)),
            (f"records of {shards:,} shards", records, (shards,)),
        ]
        for step, function, arguments in calls:
            figures = in_process(function, folder, *arguments)
            row = {"step": step, **figures, **figures.pop("result", {})}
            if step in ("write parts", "finalize"):
                files = (folder / "scores").rglob("*")
                row["bytes_per_row"] = sum(f.stat().st_size for f in files if f.is_file()) / rows
            yield row


if __name__ == "__main__":
    benchmark(steps, memory_limit=LIMIT)
