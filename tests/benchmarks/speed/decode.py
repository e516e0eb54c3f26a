"""Decoding and resizing JPEGs on one core, against open_clip's own transform.

open_clip's transform normalises as well, which ncclean leaves to the device; the note has the
ratio with the normalisation added to ncclean's side.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence

import torch
from measure import Setting, take_turns
from PIL import Image
from results import Row, Target
from towers import OPEN_CLIP_DEFAULT, open_clip_transform

from ncclean.data.decode import ImageDecoder
from speed.corpora import photographs

_SIZES = ((640, 480), (300, 300))
_QUALITIES = (75, 90)

Decode = Callable[[bytes], torch.Tensor]


def run(setting: Setting) -> list[Row]:
    count = setting.choose(full=200, quick=60)
    repeats = setting.choose(full=5, quick=3)
    transform = open_clip_transform(OPEN_CLIP_DEFAULT)
    decoder = ImageDecoder(OPEN_CLIP_DEFAULT)
    mean = torch.tensor(OPEN_CLIP_DEFAULT.mean).view(3, 1, 1)
    std = torch.tensor(OPEN_CLIP_DEFAULT.std).view(3, 1, 1)

    def theirs(data: bytes) -> torch.Tensor:
        return transform(Image.open(io.BytesIO(data)))

    def ours(data: bytes) -> torch.Tensor:
        return decoder(data).pixels

    def ours_normalized(data: bytes) -> torch.Tensor:
        return decoder(data).pixels.float().div_(255).sub_(mean).div_(std)

    rows = []
    largest = 0.0
    with one_thread():
        for size in _SIZES:
            for quality in _QUALITIES:
                images = photographs(count, size, quality)
                name = f"{size[0]}x{size[1]} quality {quality}"
                rows.append(_compare(name, images, theirs, ours, ours_normalized, repeats))
                for data in images:
                    expected = (theirs(data) * std + mean) * 255
                    largest = max(largest, float((expected - ours(data)).abs().max()))
    difference = Row(
        name="pixel difference",
        value=round(largest),
        unit="of 255 levels",
        target=Target("value", "<=", 2),
        note="largest of all",
    )
    return [*rows, difference]


def _compare(
    name: str,
    images: Sequence[bytes],
    theirs: Decode,
    ours: Decode,
    ours_normalized: Decode,
    repeats: int,
) -> Row:
    def over_all(decode: Decode) -> Callable[[], None]:
        def decode_all() -> None:
            for data in images:
                decode(data)

        return decode_all

    timings = take_turns(
        {
            "theirs": over_all(theirs),
            "ours": over_all(ours),
            "ours normalized": over_all(ours_normalized),
        },
        repeats,
    )
    reference, found = timings["theirs"].best, timings["ours"]
    normalized = reference / timings["ours normalized"].best
    return Row(
        name=name,
        value=len(images) / found.best,
        unit="images/s",
        ratio=reference / found.best,
        target=Target("ratio", ">=", 3.0),
        note=f"{sum(map(len, images)) / len(images) / 1e3:.0f} kB each, "
        f"{normalized:.2f}x normalising on both sides, {found.spread}",
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
