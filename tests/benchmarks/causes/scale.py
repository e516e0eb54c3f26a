"""Time and memory of `ncclean explain` on tables of many pairs, with causes to find.

    python tests/benchmarks causes.scale --out runs/causes-scale [--rows 1000000 10000000]
        [--memory 4GB] [--record docs/records/causes-scale.json]

Captions of 6 to 17 words of a vocabulary of a million, hosts and folders of urls from as many, both
with frequencies like 1/rank; shards of 10,000. A tenth of the pairs is noise. 500 pairs of a host,
a word, a shard and a phrase each are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
from process import run_ncclean
from records import Row, benchmark

from ncclean.explaining.cause_table import read_causes

WRONG = 500
_VOCABULARY = 1_000_000
CAUSES = ("host: broken.example", "word: flurb", "shard: 00003", "phrase: via snorf")


def write_table(path: Path, rows: int) -> None:
    """Write a score table; the pairs of causes are spread over all of it, but for a shard's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    step = rows // (3 * WRONG)
    zipf = f"floor(exp(random() * ln({_VOCABULARY})))::INT"
    connection = duckdb.connect()
    connection.execute(
        f"SET memory_limit = '4GB'; SET temp_directory = '{path.parent / 'spill'}';"
        "SET preserve_insertion_order = false; SELECT setseed(0.5)"
    )
    connection.execute(
        f"""COPY (
        WITH numbered AS (
          SELECT i, i // 10000 AS shard,
            CASE WHEN i // 10000 = 3 THEN (CASE WHEN i % 20 = 0 THEN 3 END)
                 WHEN i % {step} = 0 AND i // {step} < {3 * WRONG} THEN (i // {step}) % 3
            END AS cause
          FROM range({rows}) AS numbers(i)),
        drawn AS (SELECT *, cause IS NOT NULL OR random() < 0.1 AS wrong FROM numbered)
        SELECT format('{{:032x}}', i::HUGEINT) AS uid,
          format('{{:05d}}', shard) AS shard, i::VARCHAR AS key, (i % 10000)::INT AS row,
          0::SMALLINT AS caption_number,
          array_to_string(list_transform(range(6 + (random() * 12)::INT),
            lambda n: 'w' || {zipf}), ' ')
            || CASE cause WHEN 1 THEN ' flurb' WHEN 2 THEN ' via snorf' ELSE '' END AS text,
          'https://' || CASE cause WHEN 0 THEN 'broken' ELSE 'h' || {zipf} END || '.example/d'
            || {zipf} || '/' || i || '.jpg' AS url,
          (100 + random() * 50)::INT AS width, (100 + random() * 50)::INT AS height, 'ok' AS status,
          (CASE WHEN wrong THEN 0.1 ELSE 0.3 END + (random() - 0.5) * 0.1)::FLOAT AS similarity,
          (CASE WHEN wrong THEN (random() * 2000)::INT ELSE (random() * 40)::INT END) AS t2i_rank,
          (CASE WHEN wrong THEN (random() * 2000)::INT ELSE (random() * 40)::INT END) AS i2t_rank,
          (i % 10000 // 2000)::INT AS block,
          (CASE WHEN wrong THEN 1 - random() * random() ELSE random() * random() * 0.1 END)::FLOAT
            AS noise_probability
        FROM drawn) TO '{path}' (FORMAT parquet, COMPRESSION zstd)"""
    )
    connection.close()


def explain(
    out: Path, rows: tuple[int, ...] = (1_000_000, 10_000_000), memory: str = "4GB"
) -> Iterator[Row]:
    """A row for each number of pairs, explained in a process of its own."""
    for count in rows:
        table, causes = out / f"{count}.parquet", out / f"causes-{count}.parquet"
        if not table.exists():
            write_table(table, count)
        run = run_ncclean(
            "explain", table, "--out", causes, "--memory-limit", memory, "--overwrite"
        )
        unfolded = [cause for cause in read_causes(str(causes)) if cause.folded_into is None]
        yield {
            "rows": count,
            "bytes": table.stat().st_size,
            "memory_limit": memory,
            "seconds": round(run.seconds, 1),
            "processor_seconds": round(run.processor_seconds, 1),
            "peak_mib": round(run.peak_mib),
            "tested": run.json()["tested"],
            "reported": sorted({f"{cause.kind}: {cause.label}" for cause in unfolded}),
            "planted": list(CAUSES),
        }


if __name__ == "__main__":
    benchmark(explain)
