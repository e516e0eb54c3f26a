"""Decoding and resizing JPEGs on one core, against open_clip's own transform.

open_clip's transform normalises as well, which ncclean leaves to the device.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from corpora import photographs
from measure import Row, Setting, Target, take_turns
from PIL import Image
from towers import OPEN_CLIP_DEFAULT, open_clip_transform

from ncclean.data.decode import ImageDecoder
from ncclean.models.estimator import Estimator

_SIZES = ((640, 480), (300, 300))
_QUALITIES = (75, 90)


def run(setting: Setting) -> list[Row]:
    count = setting.choose(full=200, quick=60)
    transform = open_clip_transform(OPEN_CLIP_DEFAULT)
    decoder = ImageDecoder(OPEN_CLIP_DEFAULT)
    mean = torch.tensor(OPEN_CLIP_DEFAULT.mean).view(3, 1, 1)
    std = torch.tensor(OPEN_CLIP_DEFAULT.std).view(3, 1, 1)
    ways: dict[str, Callable[[bytes], torch.Tensor]] = {
        "theirs": lambda data: transform(Image.open(io.BytesIO(data))),
        "ours": lambda data: decoder(data).pixels,
    }
    rows = []
    largest = 0.0
    with one_thread():
        for size, quality in itertools.product(_SIZES, _QUALITIES):
            images = photographs(count, size, quality)
            timings = take_turns(
                {name: partial(_over_all, way, images) for name, way in ways.items()},
                setting.choose(full=5, quick=3),
            )
            theirs, ours = (timings[name].best for name in ways)
            rows.append(
                Row(
                    name=f"{size[0]}x{size[1]} quality {quality}",
                    value=len(images) / ours,
                    unit="images/s",
                    ratio=theirs / ours,
                    target=Target("ratio", ">=", 3.0),
                    note=f"{sum(map(len, images)) / len(images) / 1e3:.0f} kB each, "
                    f"{timings['ours'].spread}",
                )
            )
            for data in images:
                expected = (ways["theirs"](data) * std + mean) * 255
                largest = max(largest, float((expected - ways["ours"](data)).abs().max()))
    difference = Row(
        name="pixel difference",
        value=round(largest),
        unit="of 255 levels",
        target=Target("value", "<=", 2),
        note="largest of all",
    )
    return [*rows, difference]


def _over_all(decode: Callable[[bytes], torch.Tensor], images: Sequence[bytes]) -> None:
    for data in images:
        decode(data)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_DRAFT_SIZES = ((512, 512), (640, 480), (1024, 768), (2048, 1536))


def run_draft(setting: Setting) -> list[Row]:
    """JPEGs decoded at a smaller scale (`score --draft`), against whole ones.

    Beside the speed stands what the images lose: the mean difference of the pixels, in levels of
    255, and how far the embeddings of `demo` move.
    """
    count = setting.choose(full=100, quick=20)
    estimator = Estimator.load("demo", precision="fp32", device="cpu")
    rows = []
    with one_thread():
        for size in _DRAFT_SIZES:
            images = photographs(count, size, 90)
            decoders = {
                name: ImageDecoder(OPEN_CLIP_DEFAULT, draft=name == "draft")
                for name in ("whole", "draft")
            }
            timings = take_turns(
                {
                    name: lambda decoder=decoder, images=images: decoder.decode_many(images)
                    for name, decoder in decoders.items()
                },
                setting.choose(full=5, quick=3),
            )
            levels, cosine = _losses(images, decoders, estimator)
            name = f"{size[0]}x{size[1]} to 224"
            whole, draft = (timings[kind].best for kind in ("whole", "draft"))
            rows += [
                Row(name=name, value=len(images) / draft, unit="images/s", ratio=whole / draft),
                Row(name=f"{name}: mean difference", value=levels, unit="of 255 levels"),
                Row(name=f"{name}: 1 - cosine of demo's embeddings", value=1 - cosine, unit=""),
            ]
    return rows


def _losses(
    images: list[bytes], decoders: dict[str, ImageDecoder], estimator: Estimator
) -> tuple[float, float]:
    """Mean difference of the pixels, and mean cosine of the embeddings at demo's own size."""
    pixels = {
        name: torch.stack([decoder(data).pixels for data in images]).float()
        for name, decoder in decoders.items()
    }
    levels = (pixels["whole"] - pixels["draft"]).abs().mean()
    embeddings = []
    for draft in (False, True):
        decoder = ImageDecoder(estimator.preprocessing, draft=draft)
        crops = torch.stack([decoder(data).pixels for data in images])
        embeddings.append(estimator.encode_image(crops))
    cosines = (embeddings[0] * embeddings[1]).sum(dim=1)
    return float(levels), float(cosines.mean())
