"""Records of size and speed as Markdown: rows, shards, neighbours, what is read of a store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from record_tables import heading, line, percent

Record = Mapping[str, Any]
_EXTRAPOLATED, _CORES = 10_000_000, 2


def neighbours_table(*records: Record) -> Iterator[str]:
    """`neighbours.py`: what searches over simulated embeddings take and find, one a column."""
    yield from heading("", *(f"{record['settings']['pairs']:,} pairs" for record in records))
    rows = [record["rows"][0] for record in records]
    yield line("images", *(row["index_image"] for row in rows))
    yield line("captions", *(row["index_text"] for row in rows))
    recalls = ("image", "text", "image_to_text", "text_to_image")
    yield line(
        "recall on a sample: images, captions, captions of images, images of captions",
        *(", ".join(percent(row[f"{name}_recall"]) for name in recalls) for row in rows),
    )
    yield line("time", *(f"{row['seconds'] / 60:.1f} minutes" for row in rows))
    yield line("processor time", *(f"{row['processor_seconds'] / 60:.1f} minutes" for row in rows))
    for text, name in (
        ("peak memory of all processes, without mapped files", "peak_gb_of_all"),
        ("peak memory of one of them, with mapped files", "peak_gb"),
    ):
        yield line(text, *(f"{row[name]:.1f} GB" if name in row else "" for row in rows))
    yield line("file", *(f"{row['output_mb']:.1f} MB" for row in rows))
    yield line("planted copies found", *(percent(row["copies_found"]) for row in rows))
    yield line(
        "planted near-duplicates found: changed as images differ, in all directions",
        *(f"{percent(row['near_found'])}; {percent(row['near_found_isotropic'])}" for row in rows),
    )
    yield ""
    yield _extrapolated(*records[-2:])


def _extrapolated(small: Record, large: Record) -> str:
    """What a larger corpus would take, from two that were measured."""
    rows = [record["rows"][0] for record in (small, large)]
    ratio = large["settings"]["pairs"] / small["settings"]["pairs"]
    further = _EXTRAPOLATED / large["settings"]["pairs"]
    hours, powers = {}, {}
    for name in ("processor_seconds", "seconds"):
        seconds = rows[1][name]
        powers[name] = math.log(seconds / rows[0][name]) / math.log(ratio)
        hours[name] = seconds * further ** powers[name] / 3600
    return (
        f"The processor time grows with the power {powers['processor_seconds']:.2f} of the pairs. "
        f"By that, {_EXTRAPOLATED:,} take {hours['processor_seconds'] / _CORES:.1f} hours of "
        f"{_CORES} cores, {hours['seconds']:.1f} by the clock; that is **extrapolated**."
    )


def plain_table(record: Record) -> Iterator[str]:
    """`neighbours.py`: what a search takes where no matrix tiles are."""
    yield from heading("pairs", "time", "processor time", "peak memory of all processes", "recalls")
    row, recalls = record["rows"][0], ("image", "text", "image_to_text", "text_to_image")
    yield line(
        f"{record['settings']['pairs']:,}", f"{row['seconds'] / 60:.1f} minutes",
        f"{row['processor_seconds'] / 60:.1f} minutes", f"{row['peak_gb_of_all']:.1f} GB",
        ", ".join(percent(row[f"{name}_recall"]) for name in recalls),
    )  # fmt: skip


def driver_table(record: Record) -> Iterator[str]:
    """`neighbours_memory.py`: what the process that runs a search holds, now and before."""
    yield from heading("pairs", "version", "driver", "with mapped files", "largest of the workers")
    for row in record["rows"]:
        version = "this" if row["version"] == "this" else f"commit {row['version']}"
        sizes = (row[name] for name in ("driver_mb", "driver_mb_with_files", "worker_mb"))
        yield line(f"{row['pairs']:,}", version, *(f"{size:,.0f} MB" for size in sizes))


def faiss_table(record: Record) -> Iterator[str]:
    """`neighbours_equal.py`: processor time of the search by list and of FAISS."""
    yield from heading(
        "queries, searched", "lists", "probed", "here, with its files", "`IndexIVFFlat`",
        "`knn`, list by list", "same neighbours",
    )  # fmt: skip
    for row in record["rows"]:
        names = ("seconds", "faiss_ivf_flat_seconds", "faiss_knn_seconds")
        yield line(
            row["direction"].replace("-", ", "), f"{row['lists']:,}", str(row["probes"]),
            *(f"{row[name]:.1f} s" for name in names), percent(row["same_neighbours"]),
        )  # fmt: skip


def equal_table(record: Record) -> Iterator[str]:
    """`neighbours_equal.py`: how far the search by list is from FAISS at the same probes."""
    yield from heading(
        "queries, searched", "lists", "visited", "tasks", "queries compared", "same neighbours",
        "largest difference of a cosine",
    )  # fmt: skip
    for row in record["rows"]:
        yield line(
            row["direction"].replace("-", ", "), f"{row['lists']:,}", str(row["probes"]),
            str(row["tasks"]), f"{row['queries']:,}", percent(row["same_neighbours"]),
            f"{row['largest_difference']:.1e}",
        )  # fmt: skip
    if "ray" in record:
        ray = record["ray"]
        yield ""
        yield (
            f"{record['settings']['pairs']:,} pairs. On {ray['nodes']} nodes of Ray, the driver "
            f"killed {ray['killed']} times, {ray['same']:,} of {ray['files']:,} files of the "
            "search were the same bit for bit."
        )


def scale_table(record: Record) -> Iterator[str]:
    """`scale.rows`: what each step takes."""
    yield from heading("step", "time", "of a core", "peak memory", "")
    for row in record["rows"]:
        time, used, more = f"{row['seconds']:.1f} s", row["processor_seconds"], ""
        if "bytes_per_row" in row:
            more = f"{row['bytes_per_row']:.0f} bytes a row"
        if "manifest_mb" in row:
            more = f"{row['manifest_mb']:.0f} MB, read again in {row['load_seconds']:.0f} s"
        if "bytes_per_shard" in row:  # the step also makes the files
            time, used = "", row["seconds"] + row["plan_seconds"]
            more = (
                f"{row['bytes_per_shard']:.0f} bytes a shard, with the plan of an export "
                f"{row['bytes_per_shard_planned']:.0f}"
            )
        yield line(row["step"], time, f"{used:.1f} s", f"{row['peak_gb']:.2f} GB", more)


def review_table(record: Record) -> Iterator[str]:
    """`review.py`: seconds until a page is there, and the memory of its server."""
    settings = record["settings"]
    *views, proposals = record["rows"]
    yield from heading(
        "pictures from", "pairs", "first view", "scroll: median, worst", "jump: median, worst",
        "peak memory",
    )  # fmt: skip
    for row in views:
        yield line(
            row["source"], f"{row['pairs']:,}", f"{row['first_view']:.2f} s",
            *(f"{row[f'{name}_median']:.2f} s, {row[f'{name}_worst']:.2f} s"
              for name in ("scroll", "jump")),
            f"{row['peak_mb']:,} MB",
        )  # fmt: skip
    yield ""
    yield (
        f"The closest captions of {settings['pairs']:,} pairs, {settings['dim']} dimensions: "
        f"{proposals['index_seconds']:.0f} s to index, {proposals['index_bytes'] / 1e9:.1f} GB; "
        f"then {proposals['proposals_median']:.2f} s an image, at most "
        f"{proposals['proposals_worst']:.2f} s. The server held {proposals['indexing_mb']:,} MB "
        f"while it indexed, {proposals['searching_mb']:,} MB afterwards, without mapped files."
    )
