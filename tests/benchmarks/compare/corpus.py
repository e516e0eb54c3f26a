"""The corpora that `compare.py` measures on: rendered pairs in the size of photographs.

`ncclean synth` renders scenes of 96 to 160 pixels. Each picture is enlarged here to four times its
sides and gets a little grain, so that decoding costs what it costs for pictures from the web. The
truth about each pair stays in its json.
"""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.data.tar_members import add_member

_ENLARGED = 4  # 384 to 640 pixels
_GRAIN = 2.0  # levels
_QUALITY = 90
_SHARD = 500
_NOISE = {"ncr": 0.2}
# What is done to copies of pairs; the first three are near-duplicates of their originals.
COPIES = ("exact", "jpeg 40", "scaled to 70 %", "blurred", "dark")
DUPLICATES = COPIES[:3]
_OF_EACH = 50

Members = dict[str, bytes]


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
    def below(cls, folder: Path) -> Corpora:
        return cls(*(folder / name.replace("_", "-") for name in cls.__dataclass_fields__))


def make_corpora(folder: Path, pairs: int) -> Corpora:
    """Render what is not there yet; a folder appears when it is whole."""
    corpora = Corpora.below(folder)
    _once(corpora.full, functools.partial(_render_full, pairs=pairs))
    shards = sorted(corpora.full.glob("*.tar"))
    _once(corpora.few, functools.partial(_reshard, shards, shards=2, size=64))
    _once(corpora.large_model, functools.partial(_reshard, shards, shards=4, size=40))
    _once(corpora.large_model_few, functools.partial(_reshard, shards, shards=2, size=16))
    _once(corpora.broken, _render_broken)
    _once(corpora.files, functools.partial(_extract, shards))
    # A cut or unreadable tar is no matter for a tool that reads files: those shards stay out.
    whole = [corpora.broken / name for name in ("00000.tar", "00003.tar")]
    _once(corpora.broken_files, functools.partial(_extract, whole))
    return corpora


def truth_of(shards: Path) -> dict[str, dict[str, Any]]:
    """The json of every sample that can be read, by its key."""
    truth = {}
    for path in sorted(shards.glob("*.tar")):
        for key, members in _samples(path):
            if "json" in members:
                truth[key] = json.loads(members["json"])
    return truth


def _once(out: Path, make: Any) -> None:
    if out.exists():
        return
    aside = out.with_name(out.name + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    make(aside)
    aside.rename(out)


def _render_full(out: Path, pairs: int) -> None:
    _render(out, CorpusOptions(pairs=pairs, noise=_NOISE, shard_size=_SHARD, duplicates=0.0))
    _write_copies(sorted(out.glob("*.tar"))[0], out / f"{pairs // _SHARD:05d}.tar")


def _render_broken(out: Path) -> None:
    """Four shards: samples of every broken kind in all, one cut in half, one of random bytes."""
    options = CorpusOptions(
        pairs=1000, noise=_NOISE, shard_size=250, duplicates=0.0, broken=0.04, seed=7
    )
    _render(out, options)
    cut = out / "00001.tar"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    (out / "00002.tar").write_bytes(random.Random(0).randbytes(1 << 20))


def _render(out: Path, options: CorpusOptions) -> None:
    small = out / "small"
    write_corpus(small, options)
    shards = sorted(small.glob("*.tar"))
    with ProcessPoolExecutor() as pool:
        list(pool.map(_enlarge_shard, shards, [out / shard.name for shard in shards]))
    shutil.rmtree(small)


def _enlarge_shard(source: Path, out: Path) -> None:
    noise = np.random.default_rng(int(out.stem))
    with tarfile.open(out, "w") as tar:
        for key, members in _samples(source):
            broken = json.loads(members["json"])["broken"]
            for extension, data in members.items():
                if extension in ("txt", "json"):
                    add_member(tar, f"{key}.{extension}", data)
                else:
                    add_member(tar, f"{key}.jpg", data if broken else _enlarge(data, noise))


def _enlarge(data: bytes, noise: np.random.Generator) -> bytes:
    small = Image.open(io.BytesIO(data)).convert("RGB")
    size = (small.width * _ENLARGED, small.height * _ENLARGED)
    pixels = np.asarray(small.resize(size, Image.Resampling.LANCZOS))
    grain = noise.normal(0.0, _GRAIN, (*pixels.shape[:2], 1))
    return _jpeg(Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8)), _QUALITY)


def _jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _write_copies(source: Path, out: Path) -> None:
    """`_OF_EACH` copies of each kind of matched pairs of a shard, as a shard of their own."""
    originals = [
        (key, members)
        for key, members in _samples(source)
        if not json.loads(members["json"])["is_noisy"]
    ]
    with tarfile.open(out, "w") as tar:
        for index in range(_OF_EACH * len(COPIES)):
            kind = COPIES[index // _OF_EACH]
            original, members = originals[index]
            key = f"{out.stem}{index:04d}"
            facts = json.loads(members["json"])
            facts |= {"key": key, "copy": kind, "copy_of": original, "uid": f"{index:032x}"}
            add_member(tar, f"{key}.jpg", _copied(members["jpg"], kind))
            add_member(tar, f"{key}.txt", members["txt"])
            add_member(tar, f"{key}.json", json.dumps(facts).encode())


def _copied(data: bytes, kind: str) -> bytes:
    if kind == "exact":
        return data
    image = Image.open(io.BytesIO(data))
    if kind == "jpeg 40":
        return _jpeg(image, 40)
    if kind == "scaled to 70 %":
        size = (round(0.7 * image.width), round(0.7 * image.height))
        return _jpeg(image.resize(size, Image.Resampling.LANCZOS), _QUALITY)
    if kind == "blurred":
        return _jpeg(image.filter(ImageFilter.GaussianBlur(12)), _QUALITY)
    return _jpeg(image.point(lambda level: level // 10), _QUALITY)


def _reshard(source: list[Path], out: Path, shards: int, size: int) -> None:
    """The first `shards * size` samples."""
    samples = (sample for path in source for sample in _samples(path))
    for shard in range(shards):
        with tarfile.open(out / f"{shard:05d}.tar", "w") as tar:
            for _ in range(size):
                key, members = next(samples)
                for extension, data in members.items():
                    add_member(tar, f"{key}.{extension}", data)


def _extract(shards: list[Path], out: Path) -> None:
    """The members as files, for tools that do not read tars."""
    for path in shards:
        for key, members in _samples(path):
            for extension, data in members.items():
                (out / f"{key}.{extension}").write_bytes(data)


def _samples(path: Path) -> Iterator[tuple[str, Members]]:
    """Key and members of each sample; ends without an error where the tar cannot be read on."""
    key, members = "", Members()
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                name, _, extension = member.name.partition(".")
                file = tar.extractfile(member)
                data = file.read() if file else b""
                if len(data) < member.size:
                    break
                if name != key:
                    if members:
                        yield key, members
                    key, members = name, {}
                members[extension] = data
    except tarfile.ReadError:
        pass
    if members:
        yield key, members


def usable(truth: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Keys of the pairs that have an image and a caption."""
    return {key for key, facts in truth.items() if facts.get("broken") is None}
