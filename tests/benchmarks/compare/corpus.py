"""The corpora that `compare.study` measures on: rendered pairs in the size of photographs.

`ncclean synth` renders scenes of 96 to 160 pixels. Each picture is enlarged here to four times its
sides and gets a little grain, so that decoding costs what it costs for pictures from the web. The
truth about each pair stays in its json.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import random
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpora import grained, jpeg, members_of, once, rendered, write_shard
from PIL import Image

_ENLARGED, _QUALITY = 4, 90  # 384 to 640 pixels
_SHARD = 500
_NOISE = {"ncr": 0.2}
COPIES = ("exact", "jpeg 40", "scaled to 70 %")  # what is done to copies of pairs
_OF_EACH = 50
Truth = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Corpora:
    """Folders of shards. `files` holds the members of `full`, `broken_files` those of `broken`."""

    full: Path
    few: Path
    large_model: Path
    large_model_few: Path
    broken: Path
    files: Path
    broken_files: Path

    @classmethod
    def made(cls, folder: Path, pairs: int) -> Corpora:
        """Render what is not there yet."""
        corpora = cls(*(folder / name.replace("_", "-") for name in cls.__dataclass_fields__))
        once(corpora.full, functools.partial(_render_full, pairs=pairs))
        shards = sorted(corpora.full.glob("*.tar"))
        for out, count, size in (
            (corpora.few, 2, 64), (corpora.large_model, 4, 40), (corpora.large_model_few, 2, 16),
        ):  # fmt: skip
            once(out, functools.partial(_reshard, shards, shards=count, size=size))
        once(corpora.broken, _render_broken)
        once(corpora.files, functools.partial(_extract, shards))
        # A cut or unreadable tar is no matter for a tool that reads files: those shards stay out.
        whole = [corpora.broken / name for name in ("00000.tar", "00003.tar")]
        once(corpora.broken_files, functools.partial(_extract, whole))
        return corpora


def truth_of(shards: Path) -> dict[str, dict[str, Any]]:
    """The json of every sample by its key, but not of one that a cut has left without its image."""
    truth = {}
    for key, members in members_of(*sorted(shards.glob("*.tar"))):
        facts = json.loads(members.get("json", b"null"))
        if facts and (facts.get("broken") or members.keys() - {"json", "txt"}):
            truth[key] = facts
    return truth


def _render_full(out: Path, pairs: int) -> None:
    _render(out, pairs=pairs, shard_size=_SHARD)
    write_shard(out / f"{pairs // _SHARD:05d}.tar", _copies(out, f"{pairs // _SHARD:05d}"))


def _render_broken(out: Path) -> None:
    """Four shards: samples of every broken kind in all, one cut in half, one of random bytes."""
    _render(out, pairs=1000, shard_size=250, broken=0.04, seed=7)
    cut = out / "00001.tar"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    (out / "00002.tar").write_bytes(random.Random(0).randbytes(1 << 20))


def _render(out: Path, **options: Any) -> None:
    small = rendered(out / "small", noise=_NOISE, **options)
    shards = sorted(small.glob("*.tar"))
    with ProcessPoolExecutor() as pool:
        list(pool.map(_enlarge_shard, shards, [out / shard.name for shard in shards]))
    shutil.rmtree(small)


def _enlarge_shard(source: Path, out: Path) -> None:
    write_shard(out, _enlarged(source))


def _enlarged(source: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    noise = np.random.default_rng(int(source.stem))
    for key, members in members_of(source):
        kinds = members.keys() - {"txt", "json"}
        for kind in kinds if json.loads(members["json"])["broken"] is None else ():
            small = Image.open(io.BytesIO(members.pop(kind))).convert("RGB")
            size = (small.width * _ENLARGED, small.height * _ENLARGED)
            large = small.resize(size, Image.Resampling.LANCZOS)
            members["jpg"] = jpeg(grained(large, noise), _QUALITY)
        yield key, members


def _copies(out: Path, stem: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    """`_OF_EACH` copies of each kind of matched pairs of the first shard."""
    matched = (
        (key, members, facts)
        for key, members in members_of(out / "00000.tar")
        if not (facts := json.loads(members["json"]))["is_noisy"]
    )
    copies = itertools.islice(matched, _OF_EACH * len(COPIES))
    for index, (original, members, facts) in enumerate(copies):
        kind, key = COPIES[index // _OF_EACH], f"{stem}{index:04d}"
        facts |= {"key": key, "copy": kind, "copy_of": original, "uid": f"{index:032x}"}
        image = _copied(members["jpg"], kind)
        yield key, {**members, "jpg": image, "json": json.dumps(facts).encode()}


def _copied(data: bytes, kind: str) -> bytes:
    image = Image.open(io.BytesIO(data))
    if kind == "jpeg 40":
        return jpeg(image, 40)
    if kind == "scaled to 70 %":
        size = (round(0.7 * image.width), round(0.7 * image.height))
        return jpeg(image.resize(size, Image.Resampling.LANCZOS), _QUALITY)
    return data


def _reshard(source: list[Path], out: Path, shards: int, size: int) -> None:
    """The first `shards * size` samples."""
    samples = members_of(*source)
    for shard in range(shards):
        write_shard(out / f"{shard:05d}.tar", itertools.islice(samples, size))


def _extract(shards: list[Path], out: Path) -> None:
    """The members as files, for tools that do not read tars."""
    for key, members in members_of(*shards):
        for extension, data in members.items():
            (out / f"{key}.{extension}").write_bytes(data)
