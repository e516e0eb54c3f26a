"""Bytes per second of `ncclean export` next to `cp` and `sync` of the very same bytes.

`cp` copies the shards that the export has written, so both write the same files. Samples have the
size that img2dataset's have at 256 pixels: 25 KB of image, a caption, a json. What further shards
take is told apart from what it takes to start.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpora import write_shard
from measure import Row, Setting, Target, Timing, take_turns
from process import NCCLEAN, children_seconds

_IMAGE_BYTES = 25_000
_SAMPLES = 10_000  # of a shard
_TARGET = 0.7
_COPIERS = ("export", "cp")


def run(setting: Setting) -> list[Row]:
    few, many = setting.choose(full=2, quick=1), setting.choose(full=8, quick=2)
    source = setting.scratch / "export_source"
    for number in range(many):
        write_shard(source / f"{number:05d}.tar", _samples(f"{number:05d}"))
    rows = []
    for share in (1.0, 0.7):
        candidates = {}
        sizes = {}
        for shards in (few, many):
            selection = setting.scratch / f"selection_{share}_{shards}.parquet"
            _select(source, selection, share, shards)
            written = setting.scratch / f"written_{shards}"
            _export(source, selection, written)
            sizes[shards] = sum(path.stat().st_size for path in written.glob("*.tar"))
            out, copy = setting.scratch / "out", setting.scratch / "copy"
            candidates[f"export {shards}"] = functools.partial(_export, source, selection, out)
            candidates[f"cp {shards}"] = functools.partial(_cp, written, copy)
        timings = take_turns(candidates, repeats=setting.choose(full=3, quick=3))
        rows += _rows(share, timings, (few, many), sizes)
    return rows


def _rows(
    share: float, timings: Mapping[str, Timing[float]], shards: tuple[int, int],
    sizes: Mapping[int, int],
) -> Iterator[Row]:  # fmt: skip
    few, many = shards
    best = {key: timing.best for key, timing in timings.items()}
    used = {key: min(timing.results) for key, timing in timings.items()}
    gigabytes = (sizes[many] - sizes[few]) / 1e9
    for kind, seconds, unit in (("", best, "s/GB"), ("processor, ", used, "processor s/GB")):
        further = {one: seconds[f"{one} {many}"] - seconds[f"{one} {few}"] for one in _COPIERS}
        yield Row(
            name=f"{share:.0%} of the samples, {kind}each further GB",
            value=further["export"] / gigabytes,
            unit=unit,
            ratio=further["cp"] / further["export"],
            target=None if kind else Target("ratio", ">=", _TARGET),
            note=f"cp {further['cp'] / gigabytes:.2f} s/GB",
        )


def _samples(stem: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Samples as img2dataset's, with random bytes for images."""
    rng = np.random.default_rng(int(stem))
    for index in range(_SAMPLES):
        size = max(2000, int(rng.normal(_IMAGE_BYTES, _IMAGE_BYTES / 5)))
        caption = b"a caption of the usual length, ten words or so"
        members = {"jpg": rng.bytes(size), "txt": caption, "json": rng.bytes(400)}
        yield f"{stem}{index:04d}", members


def _select(source: Path, out: Path, share: float, shards: int) -> None:
    rng = np.random.default_rng(0)
    names = [path.stem for path in sorted(source.glob("*.tar"))[:shards]]
    keys = [(name, f"{name}{i:04d}") for name in names for i in range(_SAMPLES)]
    kept = [key for key, draw in zip(keys, rng.random(len(keys)), strict=True) if draw < share]
    table = {
        "uid": [f"{index:032x}" for index in range(len(kept))],
        "shard": [shard for shard, _ in kept],
        "key": [key for _, key in kept],
        "weight": pa.array(np.ones(len(kept)), pa.float32()),
        "split": pa.nulls(len(kept), pa.string()),
    }
    pq.write_table(pa.table(table), out)


def _export(source: Path, selection: Path, out: Path) -> float:
    shutil.rmtree(out, ignore_errors=True)
    # The command, start-up and all: a worker of this process would import all that it has.
    return _processor_seconds(
        [*NCCLEAN, "export", selection, "--shards", source, "--out", out, "--quiet"]
    )


def _cp(source: Path, out: Path) -> float:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    never = ["--reflink=never"] if sys.platform == "linux" else []
    seconds = _processor_seconds(["cp", *never, *sorted(source.glob("*.tar")), out])
    os.sync()  # export has every file on the disk before it is published
    return seconds


def _processor_seconds(command: Sequence[str | Path]) -> float:
    before = children_seconds()
    subprocess.run(command, check=True)
    return children_seconds() - before
