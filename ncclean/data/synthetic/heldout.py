"""Render held-out sets: retrieval with five captions an image, and zero-shot classification.

They use separate random generators, so no training scene or corpus shares one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ncclean.data.synthetic.captions import write_caption
from ncclean.data.synthetic.corpus import tar_writer
from ncclean.data.synthetic.render import draw_scene, encode
from ncclean.data.synthetic.scene import (
    COLOURS,
    SHAPES,
    TEXTURES,
    generator,
    sample_probe,
    sample_scene,
)

CAPTIONS_PER_IMAGE = 5


@dataclass(frozen=True, slots=True)
class RetrievalPair:
    extension: str
    image: bytes
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ZeroshotSet:
    """A zero-shot classification task; `{c}` in a template stands for the class name."""

    name: str
    fact: str  # the argument of `sample_probe` that the label fixes
    classnames: tuple[str, ...]
    values: tuple[str | int, ...]
    templates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ZeroshotSample:
    extension: str
    image: bytes
    label: int


ZEROSHOT_SETS = (
    ZeroshotSet(
        "shape",
        "shape",
        SHAPES,
        SHAPES,
        ("a photo of a {c}", "an image showing a {c}", "a {c}", "a drawing of a {c}"),
    ),
    ZeroshotSet(
        "colour",
        "colour",
        tuple(COLOURS),
        tuple(COLOURS),
        tuple(f"{start} {{c}} {shape}" for start in ("a photo of a", "a") for shape in SHAPES),
    ),
    ZeroshotSet(
        "texture",
        "texture",
        TEXTURES,
        TEXTURES,
        tuple(f"{start} {{c}} {shape}" for start in ("a photo of a", "a") for shape in SHAPES),
    ),
    ZeroshotSet(
        "count",
        "count",
        ("one", "two", "three", "four"),
        (1, 2, 3, 4),
        tuple(
            f"{start}{{c}} {colour} {shape}s"
            for start in ("a photo of ", "")
            for shape, colour in zip(SHAPES, (*COLOURS, "red"), strict=True)
            if shape != "cross"
        ),
    ),
)


def retrieval_pair(seed: int, index: int) -> RetrievalPair:
    """Render image `index` of the held-out retrieval set, with its five captions."""
    rng = generator("heldout-retrieval", seed, index)
    scene = sample_scene(rng)
    extension, image = encode(draw_scene(scene, rng), rng)
    captions = tuple(write_caption(scene, rng).text for _ in range(CAPTIONS_PER_IMAGE))
    return RetrievalPair(extension, image, captions)


def zeroshot_sample(
    zeroshot: ZeroshotSet, seed: int, index: int, split: str = "test"
) -> ZeroshotSample:
    """Render image `index` of a zero-shot set's split `test` or `train`; classes alternate."""
    if split == "test":
        rng = generator("heldout-zeroshot", zeroshot.name, seed, index)
    else:
        rng = generator("heldout-zeroshot", split, zeroshot.name, seed, index)
    label = index % len(zeroshot.values)
    value = zeroshot.values[label]
    if zeroshot.fact == "count":
        scene = sample_probe(rng, count=int(value))
    elif zeroshot.fact == "shape":
        scene = sample_probe(rng, shape=str(value))
    elif zeroshot.fact == "colour":
        scene = sample_probe(rng, colour=str(value))
    else:
        scene = sample_probe(rng, texture=str(value))
    extension, image = encode(draw_scene(scene, rng), rng)
    return ZeroshotSample(extension, image, label)


def write_retrieval_set(out: Path, images: int, seed: int) -> None:
    """Render the retrieval set in clip_benchmark's layout: `test/0.tar`, five captions an image."""

    def members(index: int) -> Iterator[tuple[str, bytes]]:
        pair = retrieval_pair(seed, index)
        yield pair.extension, pair.image
        yield "txt", "\n".join(pair.captions).encode()

    _write_split(out / "test", images, members)
    (out / "dataset_type.txt").write_text("retrieval\n")


def write_zeroshot_set(out: Path, zeroshot: ZeroshotSet, images: int, seed: int) -> None:
    """Write a classification set in clip_benchmark's layout, with class names and prompt templates.

    `test` serves zero-shot classification; `train`, equally large, is for linear probes.
    """

    def members(split: str, index: int) -> Iterator[tuple[str, bytes]]:
        sample = zeroshot_sample(zeroshot, seed, index, split)
        yield sample.extension, sample.image
        yield "cls", str(sample.label).encode()

    for split in ("test", "train"):
        _write_split(out / split, images, partial(members, split))
    (out / "classnames.txt").write_text("\n".join(zeroshot.classnames) + "\n")
    (out / "zeroshot_classification_templates.txt").write_text("\n".join(zeroshot.templates) + "\n")


def write_heldout(out: Path, images: int, seed: int) -> None:
    """Render the held-out sets into `out`: `retrieval` and four of zero-shot classes."""
    write_retrieval_set(out / "retrieval", images, seed)
    for zeroshot in ZEROSHOT_SETS:
        write_zeroshot_set(out / f"zeroshot-{zeroshot.name}", zeroshot, images, seed)


def _write_split(
    folder: Path, images: int, members: Callable[[int], Iterator[tuple[str, bytes]]]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / "0.tar.tmp"
    with tar_writer(aside) as tar:
        for index in range(images):
            tar.write({"__key__": f"s{index:07d}", **dict(members(index))})
    aside.replace(folder / "0.tar")
    (folder / "nshards.txt").write_text("1\n")
