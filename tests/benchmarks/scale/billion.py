"""What every stage costs for a corpus of a billion pairs, from the records of what was measured.

    python tests/benchmarks scale.billion --pairs 1e9 --core-hour 0.04 --gpu-hour 1.5

Speeds are those of the records in docs/records. docs/scale.md has the table for the defaults.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from record_tables import heading, line
from records import ROOT

Record = Mapping[str, Any]
RECORDS = ("benchmarks", "embeddings", "scale", "neighbours-3m", "export", "gpu")
_DIM = 512
_PAIR_BYTES = 26_000  # in a shard: an image at 256 pixels, a caption, a json
_SCORE_BYTES = 190  # of a row with a caption and a URL of the web; simulated ones take 67
_KEPT = 0.3
_ON_A_CPU = "ViT-B-32 score auto"  # a row of benchmarks


@dataclass(frozen=True)
class Stage:
    """Hours of cores and of GPUs, bytes read and written."""

    name: str
    core_hours: float
    gpu_hours: float
    read: float
    written: float

    def price(self, core_hour: float, gpu_hour: float) -> float:
        return self.core_hours * core_hour + self.gpu_hours * gpu_hour


def gpu_row(record: Record) -> Record:
    """The row of ViT-B/32 on a GPU whose cores all decode."""
    rows = (r for r in record["rows"] if r["model"] == "ViT-B-32" and r["decode_on"] == "cpu")
    return max(rows, key=lambda row: row["decoders"])


def stages(records: Mapping[str, Record], pairs: float) -> Iterator[Stage]:
    """Each stage on so many pairs. All but `neighbours` grow with the pairs, it with n^1.5."""
    hours = pairs / 3600
    images, vectors, scores = pairs * _PAIR_BYTES, pairs * 4 * _DIM, pairs * _SCORE_BYTES
    steps = {row["step"]: row["processor_seconds"] for row in records["scale"]["rows"]}
    of_row = 1 / records["scale"]["settings"]["rows"]
    card = gpu_row(records["gpu"])
    gpu = hours / card["score"]
    yield Stage("`score`, images, GPU", card["decoders"] * gpu, gpu, images, scores + vectors)
    speeds = {row["name"]: row["value"] for row in records["benchmarks"]["rows"]}
    cpu = hours / speeds[_ON_A_CPU] * records["benchmarks"]["machine"]["cores"]
    yield Stage("`score`, images, CPU alone", cpu, 0, images, scores + vectors)
    speed = records["embeddings"]["rows"][0]["value"]
    yield Stage("`score`, embeddings", hours / speed, 0, vectors, scores)
    yield Stage("finalize", hours * steps["finalize"] * of_row, 0, scores, scores)
    searched = records["neighbours-3m"]
    count, k = searched["settings"]["pairs"], 30
    seconds = searched["rows"][0]["processor_seconds"] * (pairs / count) ** 1.5
    work = vectors + pairs * 32 * k
    yield Stage("`neighbours`", seconds / 3600, 0, 4 * vectors + work, work)
    chosen = hours * steps["top 30 % selection"] * of_row
    yield Stage("`select`, the best 30 %", chosen, 0, scores, _KEPT * pairs * 60)
    gigabyte = max(r["value"] for r in records["export"]["rows"] if r["unit"] == "processor s/GB")
    written = _KEPT * images
    yield Stage("`export` of them", written / 1e9 * gigabyte / 3600, 0, images, written)
    yield Stage("`report`", hours * steps["report"] * of_row, 0, scores, 0)


def billion_table(
    *records: Record, pairs: float = 1e9, core_hour: float = 0.04, gpu_hour: float = 1.5
) -> Iterator[str]:
    """Markdown, without stages of less than an hour; `records` in the order of `RECORDS`."""
    yield from heading("stage", "core-hours", "GPU-hours", "read", "written", "price")
    for stage in stages(dict(zip(RECORDS, records, strict=True)), pairs):
        if stage.core_hours < 1:
            continue
        yield line(
            stage.name,
            _short(stage.core_hours),
            _short(stage.gpu_hours) if stage.gpu_hours else "",
            f"{stage.read / 1e12:,.2f} TB",
            f"{stage.written / 1e12:,.2f} TB",
            f"{stage.price(core_hour, gpu_hour):,.2f}",
        )


def _short(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:,.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for option, default in (("pairs", 1e9), ("core-hour", 0.04), ("gpu-hour", 1.5)):
        parser.add_argument(f"--{option}", type=float, default=default, help=f"default: {default}")
    records = [
        json.loads((ROOT / "docs" / "records" / f"{name}.json").read_text()) for name in RECORDS
    ]
    print(*billion_table(*records, **vars(parser.parse_args())), sep="\n")


if __name__ == "__main__":
    main()
