"""Records of size and speed as Markdown: rows, shards, neighbours, what is read of a store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from record_tables import heading, line, percent

Record = Mapping[str, Any]
_EXTRAPOLATED, _CORES = 10_000_000, 2


def neighbours_lines(*records: Record) -> Iterator[str]:
    """`neighbours.py`: what searches over simulated embeddings take and find, one a line."""
    recalls = ("image", "text", "image_to_text", "text_to_image")
    for record in records:
        row = record["rows"][0]
        lowest = percent(min(row[f"{name}_recall"] for name in recalls))
        yield (
            f"- {record['settings']['pairs']:,} pairs: {row['processor_seconds'] / 60:.1f} "
            f"minutes, {row['peak_gb_of_all']:.1f} GB, recall {lowest}; near-duplicates found: "
            f"{percent(row['near_found'])} of those changed as images differ, "
            f"{percent(row['near_found_isotropic'])} of those changed in all ways."
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


def further_lines(plain: Record, memory: Record) -> Iterator[str]:
    """`neighbours.search` without matrix tiles, and `neighbours.memory`."""
    row = plain["rows"][0]
    yield (
        f"- Without matrix tiles, {plain['settings']['pairs']:,} pairs took "
        f"{row['processor_seconds'] / 60:.1f} minutes of processor time and "
        f"{row['peak_gb_of_all']:.1f} GB."
    )
    small, *_, large = (row for row in memory["rows"] if row["version"] == "this")
    yield (
        f"- The process that runs a search held {small['driver_mb']:,.0f} MB with "
        f"{small['pairs']:,} pairs and {large['driver_mb']:,.0f} MB with {large['pairs']:,} "
        "(96 dimensions, a limit of 1 GB)."
    )


def faiss_line(record: Record) -> Iterator[str]:
    """`neighbours.equal`: processor time of the command and of FAISS alone."""
    settings, run = record["settings"], record["command_run"]
    yield (
        f"For {settings['pairs']:,} pairs of {settings['dim']} dimensions and {settings['k']} "
        f"neighbours the command takes {run['processor_seconds']:.1f} s of a core without matrix "
        f"tiles, {run['start_seconds']:.1f} of them for its start, at a recall of at least "
        f"{percent(run['lowest_recall'])}; `IndexIVFFlat` alone, in memory and for the four "
        f"searches only, takes {run['faiss_seconds']:.1f} s."
    )


def scale_table(record: Record) -> Iterator[str]:
    """`scale.rows`: what each step takes of a core, without the queries that take a second."""
    yield from heading("step", "time", "peak memory")
    for row in record["rows"]:
        used, step = row["processor_seconds"], row["step"]
        if step.startswith(("write", "query")):
            continue
        if "list_mb" in row:
            step += f", {row['list_mb']:.0f} MB, read again in {row['load_seconds']:.0f} s"
        if "bytes_per_shard" in row:  # the step also makes the files
            used = row["seconds"] + row["plan_seconds"]
        yield line(step, f"{used:.1f} s", f"{row['peak_gb']:.2f} GB")


def resume_line(record: Record) -> Iterator[str]:
    """`scale.resume`: how long a run of many shards in a store takes to go on."""
    seconds = [row["seconds"] for row in record["rows"]]
    delay = 1000 * record["settings"]["delay"]
    yield (
        f"A run of {record['settings']['shards']:,} shards in a store that answers after "
        f"{delay:.0f} ms goes on after {seconds[0]:.0f} s from parts, one request each, and after "
        f"{seconds[2]:.0f} s once they are in the table; one process writes the table of these "
        f"parts in {seconds[1] / 60:.1f} minutes. The store ran on the same two cores."
    )


def review_lines(record: Record) -> Iterator[str]:
    """`review.py`: seconds until a page is there, and the memory of its server."""
    settings = record["settings"]
    *views, proposals = record["rows"]
    for row in views:
        scroll, jump = (
            f"{row[f'{name}_median']:.2f} s (at most {row[f'{name}_worst']:.2f} s)"
            for name in ("scroll", "jump")
        )
        yield (
            f"- {row['source']}, {row['pairs']:,} pairs: first view {row['first_view']:.2f} s, "
            f"scroll {scroll}, jump {jump}, {row['peak_mb']:,} MB."
        )
    yield (
        f"- The closest captions of {settings['pairs']:,} pairs, {settings['dim']} dimensions: "
        f"{proposals['index_seconds']:.0f} s to index, {proposals['index_bytes'] / 1e9:.1f} GB; "
        f"then {proposals['proposals_median']:.2f} s an image, at most "
        f"{proposals['proposals_worst']:.2f} s. The server held {proposals['indexing_mb']:,} MB "
        f"while it indexed, {proposals['searching_mb']:,} MB afterwards, without mapped files."
    )
