"""Bytes per second of `ncclean export` next to `cp` of the very same bytes.

`cp` copies the shards that the export has written, so both write the same files. Samples have the
size that img2dataset's have at 256 pixels: 25 KB of image, a caption, a json.
"""

from __future__ import annotations

import functools
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import NCCLEAN
from measure import Setting, take_turns
from results import Row, Target

_IMAGE_BYTES = 25_000
_SAMPLES = 10_000  # of a shard
_TARGET = 0.7


def run(setting: Setting) -> list[Row]:
    shards = setting.choose(full=8, quick=2)
    source = setting.scratch / "export_source"
    source.mkdir()
    for number in range(shards):
        write_shard(source / f"{number:05d}.tar", number)
    rows = []
    for share in (1.0, 0.7):
        selection = setting.scratch / f"selection_{share}.parquet"
        _select(source, selection, share)
        written = setting.scratch / "written"
        _export(source, selection, written)
        size = sum(path.stat().st_size for path in written.glob("*.tar"))
        timings = take_turns(
            {
                "export": functools.partial(_export, source, selection, setting.scratch / "out"),
                "cp": functools.partial(_cp, written, setting.scratch / "copy"),
            },
            repeats=setting.choose(full=3, quick=3),
        )
        ratio = timings["cp"].best / timings["export"].best
        rows.append(
            Row(
                name=f"{share:.0%} of the samples",
                value=size / 1e6 / timings["export"].best,
                unit="MB/s",
                ratio=ratio,
                target=Target("ratio", ">=", _TARGET),
                note=f"{size / 1e6:,.0f} MB, cp {size / 1e6 / timings['cp'].best:,.0f} MB/s, "
                f"{timings['export'].spread}",
            )
        )
    return rows


def write_shard(
    path: Path, seed: int, samples: int = _SAMPLES, image_bytes: int = _IMAGE_BYTES
) -> None:
    """A shard of samples as img2dataset's, with random bytes for images."""
    rng = np.random.default_rng(seed)
    with tarfile.open(path, "w") as tar:
        for index in range(samples):
            size = max(2000, int(rng.normal(image_bytes, image_bytes / 5)))
            for extension, data in (
                ("jpg", rng.bytes(size)),
                ("txt", b"a caption of the usual length, ten words or so"),
                ("json", rng.bytes(400)),
            ):
                info = tarfile.TarInfo(f"{path.stem}{index:04d}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def _select(source: Path, out: Path, share: float) -> None:
    rng = np.random.default_rng(0)
    names = [path.stem for path in sorted(source.glob("*.tar"))]
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


def _export(source: Path, selection: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    # The command, start-up and all: a worker of this process would import all that it has.
    subprocess.run(
        [*NCCLEAN, "export", selection, "--shards", source, "--out", out, "--quiet"], check=True
    )


def _cp(source: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    subprocess.run(["cp", *sorted(map(str, source.glob("*.tar"))), str(out)], check=True)
    os.sync()  # export has every file on the disk before it is published
