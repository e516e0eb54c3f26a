"""Small score tables for the report's tests, and the hostile captions they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ncclean.base import schema

HOSTILE = {
    "script": '<script>window.hacked = "script"</script>',
    "attribute": '"><img src=x onerror="window.hacked = 1">',
    "closing": "</script><script>window.hacked = 2</script><!--<script>",
    "template": "{{ 7 * 7 }} {% raw %} ${window.hacked = 3} &lt;b&gt; &amp;",
    "bidi": "invoice \u202egpj.exe\u202c \u2066isolated",
    "arabic": "\u200f\u062f\u0627\u0626\u0631\u0629 \u062d\u0645\u0631\u0627\u0621",
    "megabyte": "word " * 200_000,
    "one_word": "x" * 1_000_000,
    "zalgo": "z" + "\u0301" * 500,
}


def write_scores(
    path: Path, rows: list[dict[str, Any]], metadata: dict[str, str] | None = None
) -> Path:
    """A score table of the current schema; what a row leaves out is null or a default."""
    import pyarrow as pa

    filled = [
        {
            **dict.fromkeys(schema.SCORES.names),
            "uid": f"u{number}",
            "shard": "00000",
            "key": f"k{number}",
            "row": number,
            "text": f"caption {number}",
            "status": "ok",
            **row,
        }
        for number, row in enumerate(rows)
    ]
    optional = {**schema.WORD_TYPES, **schema.PART_TYPES}
    words = [pa.field(*item) for item in optional.items() if any(item[0] in row for row in rows)]
    kinds = pa.schema([*schema.SCORES, *words], metadata)
    table = pa.Table.from_pylist(filled, kinds)
    pq.write_table(table, path)
    return path


def graded(count: int = 40) -> list[dict[str, Any]]:
    """Pairs whose noise probability falls from 1 to 0 as the cosine rises from -0.5 to 0.5."""
    rows = []
    for number in range(count):
        place = number / (count - 1)
        rows.append(
            {
                "similarity": place - 0.5,
                "noise_probability": 1 - place,
                "null_p_value": 1 - place,
                "neg_clip_loss": place - 1,
                "ncu_confidence": place,
                "ncu_split": "forget" if place < 0.1 else "retain",
                "disncl_clean": place > 0.6,
                "osa_weight": max(place - 0.3, 0.0),
                "osa_noisy": place <= 0.3,
                "clean_posterior": place,
                "is_noisy": place < 0.25,
                "noise_kind": "ncr" if place < 0.25 else None,
            }
        )
    return rows
