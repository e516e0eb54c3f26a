"""Image bytes to the uint8 crop that an estimator sees; cheap gates come before decoding.

The result equals open_clip's inference transform up to its normalisation, which happens on the
device. JPEGs (nearly all of a web corpus) take torchvision's decoder and its uint8 antialiased
resize, about three times as fast as Pillow and within 2 of 255 levels of it; everything else
takes Pillow.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.dlpack
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from ncclean.data.gate import PixelGate
from ncclean.data.image_signals import image_signals
from ncclean.data.sample_groups import HEIC_NOT_READ
from ncclean.data.samples import SkipReason
from ncclean.options import MAX_PIXELS

# Only formats that web crawls contain: every further parser is attack surface.
PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
# Past this aspect ratio the resized strip is mostly thrown away by the crop (30000 x 1 px would
# become 6,720,000 x 224 px), so only the cropped window is resampled.
_MAX_STRIP_RATIO = 3.0


@dataclass(frozen=True)
class Preprocessing:
    """open_clip's `PreprocessCfg` as values: what happens to an image before the encoder."""

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
    """`pixels` is a uint8 (3, H, W) crop; `width` and `height` are those of the original.

    `signals` are those of `ncclean.data.image_signals`, where they were asked for.
    """

    pixels: torch.Tensor
    width: int
    height: int
    signals: dict[str, float | str] | None = None


class ImageRejected(Exception):
    """The image cannot be used; carries the status, and the size where the header told it."""

    def __init__(
        self, reason: SkipReason, message: str, width: int | None = None, height: int | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.width = width
        self.height = height


class ImageDecoder:
    """Decodes one image at a time; safe to call from several threads, which share its `gate`.

    `fast=False` takes Pillow throughout, which reproduces open_clip's pixels exactly. `signals`
    asks for those of `ncclean.data.image_signals`. `draft` has large plain JPEGs decoded at a half,
    a quarter or an eighth of their size, never below the size that the estimator sees: libjpeg
    leaves out the finer frequencies.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        max_pixels: int = MAX_PIXELS,
        fast: bool = True,
        signals: bool = False,
        draft: bool = False,
    ) -> None:
        self.gate = PixelGate()
        self._with_signals = signals
        self._draft = draft
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
        try:
            with self.gate.hold(width * height):
                pixels, signals = self._pixels(data, header)
        except ImageRejected:
            raise
        except Exception as error:  # decoders raise anything on hostile bytes
            raise ImageRejected(SkipReason.IMAGE_CORRUPT, one_line(error), width, height) from error
        return DecodedImage(pixels, width, height, signals)

    def decode_many(self, images: Sequence[bytes]) -> list[DecodedImage | ImageRejected]:
        """Decode a batch of images; the place of a rejected one holds its error."""
        return [self.decode_or_reject(data) for data in images]

    def decode_or_reject(self, data: bytes) -> DecodedImage | ImageRejected:
        """Decode one image; return, not raise, the error that rejects it."""
        try:
            return self(data)
        except ImageRejected as rejected:
            return rejected

    def open_checked(self, data: bytes) -> Image.Image | ImageRejected:
        """Read an image's header. Raises `ImageRejected` with the reason if it cannot be used."""
        try:
            return open_image(data, self.max_pixels)
        except ImageRejected as rejected:
            return rejected

    def takes_fast_path(self, header: Image.Image) -> bool:
        """True for a plain JPEG, which need not pass through Pillow."""
        is_plain_jpeg = header.format == "JPEG" and header.mode in ("RGB", "L")
        return self.fast and is_plain_jpeg and not _is_strip(*header.size, self.preprocessing)

    def _pixels(
        self, data: bytes, header: Image.Image
    ) -> tuple[torch.Tensor, dict[str, float | str] | None]:
        """The crop, and the signals of the whole."""
        signals = None
        if self.takes_fast_path(header):
            if self._draft and _is_draft(header, self.preprocessing):
                array = np.array(to_rgb(header))
                return resize_tensor(
                    torch.from_numpy(array).permute(2, 0, 1), self.preprocessing
                ), None
            pixels = decode_jpeg(byte_tensor(data), mode=ImageReadMode.RGB)
            if self._with_signals:
                # A grey picture is one of three equal channels here.
                array = pixels[0] if header.mode == "L" else pixels.permute(1, 2, 0)
                signals = image_signals(Image.fromarray(array.numpy()))
            return resize_tensor(pixels, self.preprocessing), signals
        image = to_rgb(header)
        if self._with_signals:
            signals = image_signals(image)
        if self._library_transform is not None:
            return self._library_transform(image), signals
        return _resize_image(image, self.preprocessing), signals


def decode_whole(
    data: bytes, longest: int, gate: PixelGate, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """The uncropped picture for people to look at, in RGB, at most `longest` pixels a side.

    The same bounds as `ImageDecoder`, and raises what it raises.
    """
    header = open_image(data, max_pixels)
    width, height = header.size
    try:
        header.draft("RGB", (longest, longest))  # JPEG only: decodes at a fraction of the size
        with gate.hold(header.size[0] * header.size[1]):
            image = to_rgb(header)
            image.thumbnail((longest, longest), Image.Resampling.BICUBIC, reducing_gap=3.0)
    except Exception as error:  # decoders raise anything on hostile bytes
        raise ImageRejected(SkipReason.IMAGE_CORRUPT, one_line(error), width, height) from error
    return image


def open_image(data: bytes, max_pixels: int) -> Image.Image:
    """Open an image, reading only its header. Raises `ImageRejected` above the pixel limit."""
    try:
        header = Image.open(io.BytesIO(data), formats=PILLOW_FORMATS)
    except Image.DecompressionBombError as error:
        # Raised past twice Pillow's bound, which is at least ours; its text speaks of attacks.
        message = f"far more than {max_pixels} pixels"
        raise ImageRejected(SkipReason.IMAGE_TOO_LARGE, message) from error
    except Exception as error:
        message = _unidentified(data) if _is_unidentified(error) else one_line(error)
        raise ImageRejected(SkipReason.IMAGE_CORRUPT, message) from error
    width, height = header.size
    if width * height > max_pixels:
        message = f"{width} x {height} pixels, the limit is {max_pixels}"
        raise ImageRejected(SkipReason.IMAGE_TOO_LARGE, message, width, height)
    return header


def _unidentified(data: bytes) -> str:
    if data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS:
        return HEIC_NOT_READ
    if data[4:8] == b"ftyp" and data[8:12] in _AVIF_BRANDS:
        return "AVIF, which this version of Pillow does not read: update it, or convert to JPEG"
    return "not an image"


def byte_tensor(data: bytes) -> torch.Tensor:
    """A read-only uint8 tensor over bytes, without a copy."""
    # numpy views read-only bytes; torch.frombuffer would warn, and warning filters are not
    # thread-safe.
    return torch.utils.dlpack.from_dlpack(np.frombuffer(data, dtype=np.uint8))


def resize_tensor(pixels: torch.Tensor, spec: Preprocessing) -> torch.Tensor:
    """(3, h, w) uint8 -> (3, H, W) uint8 with torch's antialiased resize."""
    height, width = pixels.shape[-2:]
    new_height, new_width, top, left = _geometry(width, height, spec)
    if (new_height, new_width) != (height, width):
        pixels = F.interpolate(
            pixels[None], size=(new_height, new_width), mode=spec.interpolation, antialias=True
        )[0]
    return pixels[:, top : top + spec.size[0], left : left + spec.size[1]]


def _resize_image(image: Image.Image, spec: Preprocessing) -> torch.Tensor:
    """Pillow's resize, then the crop; for a strip, the resize of the kept window alone."""
    width, height = image.size
    new_height, new_width, top, left = _geometry(width, height, spec)
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


def _is_draft(header: Image.Image, spec: Preprocessing) -> bool:
    """Have a JPEG decoded at the smallest scale that the crop allows; whether there is one."""
    width, height = header.size
    new_height, new_width, _, _ = _geometry(width, height, spec)
    header.draft("RGB", (new_width, new_height))
    return header.size != (width, height)


def _is_strip(width: int, height: int, spec: Preprocessing) -> bool:
    ratio = max(width, height) / min(width, height)
    return spec.resize_mode == "shortest" and ratio > _MAX_STRIP_RATIO


def _geometry(width: int, height: int, spec: Preprocessing) -> tuple[int, int, int, int]:
    """Resized height and width, then top and left of the crop, rounded as torchvision does."""
    if spec.resize_mode == "squash":
        return spec.size[0], spec.size[1], 0, 0
    side = spec.size[0]
    if width <= height:
        new_width, new_height = side, int(side * height / width)
    else:
        new_width, new_height = int(side * width / height), side
    return new_height, new_width, round((new_height - side) / 2), round((new_width - side) / 2)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert the first frame of an image in any mode to 8-bit RGB, ignoring EXIF rotation."""
    if image.mode.startswith("I;16"):
        # Pillow's conversion would clip 16-bit values at 255 and leave a white image.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def _open_clip_transform(spec: Preprocessing) -> Callable[[Image.Image], torch.Tensor]:
    """open_clip's own transform without its normalisation, for modes without a fast path."""
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


def _is_unidentified(error: Exception) -> bool:
    from PIL import UnidentifiedImageError

    # A Pillow without AVIF knows no format of that name.
    return isinstance(error, (UnidentifiedImageError, struct.error, KeyError))


def one_line(error: BaseException) -> str:
    """A decoder's error message on one line, without paths of its source files."""
    text = " ".join(str(error).split()) or type(error).__name__
    # torchvision's messages start with the path of its own source file.
    text = text.split(".cpp:")[-1].split(", ", 1)[-1] if ".cpp:" in text else text
    return text[:200]
