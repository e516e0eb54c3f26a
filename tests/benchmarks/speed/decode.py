"""Decoding and resizing JPEGs on one core, against open_clip's own transform.

open_clip's transform normalises as well, which ncclean leaves to the device; the note has the
ratio with the normalisation added to ncclean's side.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from corpora import photographs
from measure import Setting, take_turns
from PIL import Image
from results import Row, Target
from towers import OPEN_CLIP_DEFAULT, open_clip_transform

from ncclean.data.decode import ImageDecoder

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
        "normalized": lambda data: decoder(data).pixels.float().div_(255).sub_(mean).div_(std),
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
            theirs, ours, normalized = (timings[name].best for name in ways)
            rows.append(
                Row(
                    name=f"{size[0]}x{size[1]} quality {quality}",
                    value=len(images) / ours,
                    unit="images/s",
                    ratio=theirs / ours,
                    target=Target("ratio", ">=", 3.0),
                    note=f"{sum(map(len, images)) / len(images) / 1e3:.0f} kB each, "
                    f"{theirs / normalized:.2f}x normalising on both sides, "
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
