"""Render a noisy corpus as webdataset shards, with the truth in each json.

Every pair depends only on the seed and its index: shards can be written in any order and by any
number of processes, to the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ncclean.base.isolated import SpawnedProcesses
from ncclean.data.caption_noise import junk_caption, with_added_detail, with_foreign_sentence
from ncclean.data.noise import WITH_PARTNER, NoisePlan, plan_noise
from ncclean.data.options import CorpusOptions
from ncclean.data.synthetic.captions import Caption, write_caption, write_sentences
from ncclean.data.synthetic.render import draw_scene, encode
from ncclean.data.synthetic.scene import Scene, alter_one_fact, generator, pick, sample_scene
from ncclean.errors import InputError

# How a sample can be broken, and the status that scoring must report.
BROKEN_KINDS = {
    "truncated_image": "image_corrupt",
    "html_page": "image_corrupt",
    "empty_image": "image_corrupt",
    "no_image": "image_missing",
    "bomb": "image_too_large",
    "no_caption": "caption_missing",
    "blank_caption": "caption_missing",
    "binary_caption": "caption_not_text",
}
_HARD_TRIES = 32


def write_corpus(
    out: Path,
    options: CorpusOptions,
    workers: int | None = None,
    on_shards: Callable[[int], None] = lambda done: None,
) -> list[Path]:
    """Render a synthetic corpus as shards `00000.tar`, `00001.tar`, ...; return their paths.

    `workers` processes share the shards (default: one per core); `on_shards` receives the number
    of shards done. Raises `InputError` if a shard exists already.
    """
    plan_noise(1, options.noise, 0)  # before a wrong rate appears as a worker's traceback
    paths = [out / f"{shard:05d}.tar" for shard in range(options.shards)]
    if existing := next((path for path in paths if path.exists()), None):
        raise InputError(f"{existing} exists; choose another --out or remove it")
    out.mkdir(parents=True, exist_ok=True)
    workers = min(workers or os.cpu_count() or 1, options.shards)
    numbers = range(options.shards)
    if workers == 1:
        for number, path in zip(numbers, paths, strict=True):
            write_shard(path, options, number)
            on_shards(number + 1)
        return paths
    with SpawnedProcesses(workers) as pool:
        shards = pool.map(write_shard, paths, [options] * len(paths), numbers)
        for done, _ in enumerate(shards, start=1):
            on_shards(done)
    return paths


def write_shard(path: Path, options: CorpusOptions, shard: int) -> None:
    """Render one shard of a synthetic corpus, and publish it once complete."""
    plan = plan_noise(options.pairs, options.noise, options.seed)
    aside = path.with_suffix(".tar.tmp")
    start = shard * options.shard_size
    with tar_writer(aside) as tar:
        for index in range(start, min(start + options.shard_size, options.pairs)):
            key = f"{shard:05d}{index - start:04d}"
            tar.write({"__key__": key, **dict(render_sample(options, plan, index, key))})
    aside.replace(path)


def tar_writer(path: Path) -> Any:
    """Return a `webdataset.TarWriter` to a new shard, whose bytes depend only on its samples."""
    import webdataset  # imports torch, which takes seconds

    return webdataset.TarWriter(str(path), encoder=False, compress=False, mtime=0)


def render_sample(
    options: CorpusOptions, plan: NoisePlan, index: int, key: str
) -> Iterator[tuple[str, bytes]]:
    """Render image, caption and json of a synthetic sample; a broken sample lacks some of them."""
    rng = generator("pair", options.seed, index)
    broken = pick(rng, tuple(BROKEN_KINDS)) if rng.random() < options.broken else None
    original = _original(options, int(plan.image_source[index]))
    scene = _scene(options, original)
    extension, image = encode(draw_scene(scene, rng), rng)
    caption, kind, noisy_part = _caption(options, plan, index)
    uid = pair_uid(options.seed, index)
    record = {
        "uid": uid,
        "key": key,
        "url": f"https://example.org/{uid[:8]}.{extension}",
        "caption": caption.text,
        "is_noisy": kind is not None,
        "noise_kind": kind,
        **({"noisy_part": noisy_part} if options.sentences > 1 else {}),
        "duplicate_of": pair_uid(options.seed, original)
        if original != plan.image_source[index]
        else None,
        "broken": broken,
        "scene": _facts(scene),
        "text_only": list(caption.text_only),
    }
    if broken in ("no_caption", "blank_caption", "binary_caption"):
        del record["caption"]
    if broken is not None:
        extension, image = _broken_image(broken, extension, image)
    if broken != "no_image":
        yield extension, image
    if broken != "no_caption":
        yield "txt", _caption_bytes(broken, caption.text)
    yield "json", json.dumps(record, separators=(",", ":")).encode()


def pair_uid(seed: int, index: int) -> str:
    """Return the uid of a rendered pair: 32 hex digits from the corpus's seed and the index."""
    return f"{generator('uid', seed, index).getrandbits(128):032x}"


def _original(options: CorpusOptions, index: int) -> int:
    """Return the pair whose scene image `index` shows: an earlier one for near-duplicates."""
    rng = generator("duplicate", options.seed, index)
    if index and rng.random() < options.duplicates:
        return int(rng.random() * index)
    return index


def _scene(options: CorpusOptions, index: int) -> Scene:
    return sample_scene(generator("scene", options.seed, index))


def _caption(
    options: CorpusOptions, plan: NoisePlan, index: int
) -> tuple[Caption, str | None, int | None]:
    """Return the caption of a pair, its kind of noise, and which of its sentences is foreign."""
    kind = str(plan.kind[index]) or None
    if kind == "junk":
        return Caption(junk_caption(generator("junk", options.seed, index)), ()), kind, None
    source = int(plan.caption_source[index])
    scene = _scene(options, _original(options, source))
    caption = _words(options, scene, source)
    if kind in WITH_PARTNER:
        giver = plan.partners[index]
        other = _words(options, _scene(options, _original(options, giver)), giver).text
        change = with_foreign_sentence if kind == "foreign_sentence" else with_added_detail
        text, part = change(caption.text, other, generator("part", options.seed, index))
        is_same = text == caption.text  # there is no other sentence to take
        return Caption(text, caption.text_only), None if is_same else kind, part
    if kind != "hard":
        return caption, kind, None
    # Some facts are not mentioned: alter until the words change.
    rng = generator("hard", options.seed, index)
    for _ in range(_HARD_TRIES):
        altered = _words(options, alter_one_fact(scene, rng), source)
        if altered.text != caption.text:
            return altered, kind, None
    raise AssertionError(f"no altered fact of pair {index} shows in its caption")


def _words(options: CorpusOptions, scene: Scene, source: int) -> Caption:
    """Write the caption of pair `source` for a scene."""
    rng = generator("caption", options.seed, source)
    if options.sentences == 1:
        return write_caption(scene, rng)
    return Caption(" ".join(write_sentences(scene, rng, options.sentences)), ())


def _facts(scene: Scene) -> dict[str, object]:
    return {
        "groups": [dataclasses.asdict(group) for group in scene.groups],
        "relation": scene.relation,
        "background": [scene.background, scene.ground, scene.ground2],
        "image_only": dataclasses.asdict(scene.image_only),
    }


def _caption_bytes(broken: str | None, text: str) -> bytes:
    if broken == "blank_caption":
        return b"  \n"
    if broken == "binary_caption":
        return b"\xff\xfe\xfa" + text.encode("utf-16-le")
    return text.encode()


def _broken_image(kind: str, extension: str, image: bytes) -> tuple[str, bytes]:
    if kind == "truncated_image":
        return extension, image[: len(image) // 2]
    if kind == "html_page":
        return extension, b"<!DOCTYPE html><html><title>404 Not Found</title></html>"
    if kind == "empty_image":
        return extension, b""
    if kind == "bomb":
        return "png", _png_header(60_000, 60_000)
    return extension, image


def _png_header(width: int, height: int) -> bytes:
    """Return a PNG header that claims a size, without pixels: a decoder must refuse it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels
