"""Turn image bytes into the uint8 crop that an estimator sees; cheap gates precede decoding.

The result equals open_clip's inference transform up to its normalisation, which happens on the
device. JPEGs (nearly all of a web corpus) use torchvision's decoder and its uint8 antialiased
resize, about three times as fast as Pillow and within 2 of 255 levels of it; everything else uses
Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from ncclean.base.options import MAX_PIXELS
from ncclean.data.gate import PixelGate
from ncclean.data.image_signals import image_signals
from ncclean.data.open_image import (
    ON_ITS_SIDE,
    ImageRejected,
    one_line,
    open_image,
    to_rgb,
    turn_of,
    upright,
)
from ncclean.data.samples import SkipReason

# Past this aspect ratio the resized strip is mostly thrown away by the crop (30000 x 1 px would
# become 6,720,000 x 224 px), so only the cropped window is resampled.
_MAX_STRIP_RATIO = 3.0

# The mark at the end of a JPEG, and how near it must be: a device accepts files cut off earlier.
_END, _END_WITHIN = b"\xff\xd9", 64


@dataclass(frozen=True)
class Preprocessing:
    """How an image is resized and cropped for the encoder, as in open_clip's `PreprocessCfg`."""

    size: tuple[int, int]  # height, width in pixels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0

    @property
    def has_fast_path(self) -> bool:
        square = self.size[0] == self.size[1]
        return self.resize_mode == "squash" or (self.resize_mode == "shortest" and square)


@dataclass(slots=True)
class DecodedImage:
    """A decoded image: `pixels` is a uint8 (3, H, W) crop.

    `width` and `height` are those of the original as stored. For a JPEG to be decoded elsewhere,
    `pixels` are its n bytes, (n,). `signals` are those of `ncclean.data.image_signals`, if
    requested. `is_turned` says whether EXIF had the image rotated.
    """

    pixels: torch.Tensor
    width: int
    height: int
    signals: dict[str, float | str] | None = None
    is_turned: bool = False


class ImageDecoder:
    """Decodes one image at a time; safe to call from several threads, which share its `gate`.

    `fast=False` uses Pillow throughout, which reproduces open_clip's pixels exactly. `signals`
    requests those of `ncclean.data.image_signals`. `draft` decodes large plain JPEGs at a half, a
    quarter or an eighth of their size, never below the size that the estimator sees: libjpeg omits
    the finer frequencies. `keep_jpegs` leaves plain, whole, upright JPEGs to a device that decodes
    them. Without `exif`, images keep their stored orientation, as in open_clip.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        max_pixels: int = MAX_PIXELS,
        fast: bool = True,
        signals: bool = False,
        draft: bool = False,
        keep_jpegs: bool = False,
        exif: bool = True,
    ) -> None:
        self.gate = PixelGate()
        self._with_signals = signals
        self._draft = draft
        self._keep_jpegs = keep_jpegs
        self._exif = exif
        self.preprocessing = preprocessing
        self.max_pixels = max_pixels
        self.fast = fast and preprocessing.has_fast_path
        self._library_transform = (
            None if preprocessing.has_fast_path else _open_clip_transform(preprocessing)
        )

    def __call__(self, data: bytes) -> DecodedImage:
        """Decode, resize and crop.

        Raises `ImageRejected` with `IMAGE_TOO_LARGE` (decided from the header alone) or
        `IMAGE_CORRUPT`.
        """
        header = open_image(data, self.max_pixels)
        width, height = header.size
        turn = self.turn_of(header)
        is_left = self._keep_jpegs and turn is None and self.takes_fast_path(header)
        if is_left and _END in data[-_END_WITHIN:]:
            return DecodedImage(byte_tensor(data), width, height)
        try:
            with self.gate.hold(width * height):
                pixels, signals = self._pixels(data, header, turn)
        except ImageRejected:
            raise
        except Exception as error:  # decoders raise any error on hostile bytes
            raise ImageRejected(SkipReason.IMAGE_CORRUPT, one_line(error), width, height) from error
        return DecodedImage(pixels, width, height, signals, turn is not None)

    def decode_many(self, images: Sequence[bytes]) -> list[DecodedImage | ImageRejected]:
        """Decode a batch of images; a rejected image is replaced by its error."""
        return [self.decode_or_reject(data) for data in images]

    def decode_or_reject(self, data: bytes) -> DecodedImage | ImageRejected:
        """Decode one image; return the error that rejects it instead of raising it."""
        try:
            return self(data)
        except ImageRejected as rejected:
            return rejected

    def turn_of(self, header: Image.Image) -> Image.Transpose | None:
        """Return the rotation that makes an image upright before it is cropped, or None."""
        return turn_of(header) if self._exif else None

    def takes_fast_path(self, header: Image.Image) -> bool:
        """Check whether bytes are a plain JPEG, which need not pass through Pillow."""
        is_plain_jpeg = header.format == "JPEG" and header.mode in ("RGB", "L")
        return self.fast and is_plain_jpeg and not _is_strip(*header.size, self.preprocessing)

    def _pixels(
        self, data: bytes, header: Image.Image, turn: Image.Transpose | None
    ) -> tuple[torch.Tensor, dict[str, float | str] | None]:
        """Return the crop, and the signals of the whole image."""
        signals = None
        if self.takes_fast_path(header):
            if self._draft and _is_draft(header, turn, self.preprocessing):
                array = np.array(upright(to_rgb(header), turn))
                return resize_tensor(
                    torch.from_numpy(array).permute(2, 0, 1), self.preprocessing
                ), None
            pixels = decode_jpeg(
                byte_tensor(data), ImageReadMode.RGB, apply_exif_orientation=turn is not None
            )
            if self._with_signals:
                # Here, a grey image has three equal channels.
                array = pixels[0] if header.mode == "L" else pixels.permute(1, 2, 0)
                signals = image_signals(Image.fromarray(array.numpy()))
            return resize_tensor(pixels, self.preprocessing), signals
        image = upright(to_rgb(header), turn)
        if self._with_signals:
            signals = image_signals(image)
        if self._library_transform is not None:
            return self._library_transform(image), signals
        return _resize_image(image, self.preprocessing), signals


def byte_tensor(data: bytes) -> torch.Tensor:
    """Copy bytes into a uint8 tensor."""
    # Without a copy, torch.frombuffer would warn, and DLPack refuses read-only memory in some
    # supported releases of torch. The copy costs a microsecond.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def resize_tensor(pixels: torch.Tensor, spec: Preprocessing) -> torch.Tensor:
    """Resize (3, h, w) uint8 to (3, H, W) uint8 with torch's antialiasing."""
    height, width = pixels.shape[-2:]
    new_height, new_width, top, left = geometry(width, height, spec)
    if (new_height, new_width) != (height, width):
        pixels = F.interpolate(
            pixels[None], size=(new_height, new_width), mode=spec.interpolation, antialias=True
        )[0]
    return pixels[:, top : top + spec.size[0], left : left + spec.size[1]]


def _resize_image(image: Image.Image, spec: Preprocessing) -> torch.Tensor:
    """Resize with Pillow, then crop; for a strip, resize only the kept window."""
    width, height = image.size
    new_height, new_width, top, left = geometry(width, height, spec)
    method = (
        Image.Resampling.BILINEAR if spec.interpolation == "bilinear" else Image.Resampling.BICUBIC
    )
    bottom, right = top + spec.size[0], left + spec.size[1]
    if _is_strip(width, height, spec):
        scale_x, scale_y = width / new_width, height / new_height
        window = (left * scale_x, top * scale_y, right * scale_x, bottom * scale_y)
        resized = image.resize((spec.size[1], spec.size[0]), method, box=window)
    else:
        resized = image.resize((new_width, new_height), method).crop((left, top, right, bottom))
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def _is_draft(header: Image.Image, turn: Image.Transpose | None, spec: Preprocessing) -> bool:
    """Have a JPEG decoded at the smallest scale that the crop allows; return if there is one."""
    stored = header.size
    width, height = stored[::-1] if turn in ON_ITS_SIDE else stored
    new_height, new_width, _, _ = geometry(width, height, spec)
    smallest = (new_width, new_height)
    header.draft("RGB", smallest[::-1] if turn in ON_ITS_SIDE else smallest)
    return header.size != stored


def _is_strip(width: int, height: int, spec: Preprocessing) -> bool:
    ratio = max(width, height) / min(width, height)
    return spec.resize_mode == "shortest" and ratio > _MAX_STRIP_RATIO


def geometry(width: int, height: int, spec: Preprocessing) -> tuple[int, int, int, int]:
    """Return the height and width to resize an image to, and the top and left of the crop.

    Resizes the shorter side to the encoder's size and crops the centre, or squashes to the size;
    rounded as in torchvision.
    """
    if spec.resize_mode == "squash":
        return spec.size[0], spec.size[1], 0, 0
    side = spec.size[0]
    if width <= height:
        new_width, new_height = side, int(side * height / width)
    else:
        new_width, new_height = int(side * width / height), side
    return new_height, new_width, round((new_height - side) / 2), round((new_width - side) / 2)


def _open_clip_transform(spec: Preprocessing) -> Callable[[Image.Image], torch.Tensor]:
    """Return open_clip's own transform without its normalisation, for modes without a fast path."""
    from open_clip.transform import image_transform
    from torchvision.transforms import Compose

    full: Any = image_transform(
        spec.size,
        is_train=False,
        resize_mode=spec.resize_mode,
        interpolation=spec.interpolation,
        fill_color=spec.fill_color,
    )
    to_unit = Compose(full.transforms[:-1])

    def transform(image: Image.Image) -> torch.Tensor:
        unit: torch.Tensor = to_unit(image)
        return (unit * 255).round().to(torch.uint8)

    return transform
