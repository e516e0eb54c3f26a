"""Open untrusted images, and decode them for people to view, with Pillow only."""

from __future__ import annotations

import functools
import io
import math
import struct
from datetime import datetime
from typing import Any

import numpy as np
from PIL import Image

from ncclean.base.options import MAX_PIXELS
from ncclean.data.gate import PixelGate
from ncclean.data.sample_groups import HEIC_NOT_READ, READS_HEIC
from ncclean.data.samples import SkipReason

# Only formats found in web crawls: every further parser is attack surface.
PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", *["HEIF"] * READS_HEIC)
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
_ORIENTATION, _DATE_CHANGED, _DATE_TAKEN = 0x0112, 0x0132, 0x9003  # EXIF tags
_EXIF_IFD = 0x8769
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ON_ITS_SIDE = tuple(turn for orientation, turn in _TURNS.items() if orientation >= 5)


class ImageRejected(Exception):
    """The error of an image that cannot be used, with its status, and its size if known."""

    def __init__(
        self, reason: SkipReason, message: str, width: int | None = None, height: int | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.width = width
        self.height = height

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, str(self), self.width, self.height)


def decode_whole(
    data: bytes | None, longest: int, gate: PixelGate, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode the uncropped, upright image for people, in RGB, at most `longest` pixels a side.

    Applies the same bounds and raises the same errors as `ImageDecoder`, also for None: see
    `ncclean.data.fetch`.
    """
    if data is None:
        raise ImageRejected(SkipReason.IMAGE_TOO_LARGE, "image file too large to show")
    if not data:
        raise ImageRejected(SkipReason.IMAGE_CORRUPT, "zero bytes")
    header = open_image(data, max_pixels)
    width, height = header.size
    try:
        header.draft("RGB", (longest, longest))  # JPEG only: decodes at a fraction of the size
        with gate.hold(header.size[0] * header.size[1]):
            image = to_rgb(header)
            image.thumbnail((longest, longest), Image.Resampling.BICUBIC, reducing_gap=3.0)
            image = upright(image, turn_of(header))
    except Exception as error:  # decoders raise any error on hostile bytes
        raise ImageRejected(SkipReason.IMAGE_CORRUPT, one_line(error), width, height) from error
    return image


def open_image(data: bytes, max_pixels: int) -> Image.Image:
    """Open an image, reading only its header. Raises `ImageRejected` above the pixel limit."""
    if READS_HEIC:
        _register_heic()
    try:
        header = Image.open(io.BytesIO(data), formats=PILLOW_FORMATS)
    except Image.DecompressionBombError as error:
        # Raised above twice Pillow's bound, which is at least ours; its text speaks of attacks.
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


@functools.cache
def _register_heic() -> None:
    """Teach Pillow to read HEIC, whose plugin turns images upright itself."""
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False)


def _unidentified(data: bytes) -> str:
    if data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS:
        return HEIC_NOT_READ
    if data[4:8] == b"ftyp" and data[8:12] in _AVIF_BRANDS:
        return "AVIF, which this version of Pillow does not read: update it, or convert to JPEG"
    return "not an image"


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert the first frame of an image in any mode to 8-bit RGB, in its stored orientation.

    For integers and floats, white is the least of 1, 255 and 65535 that no value exceeds. Raises
    `ValueError` if none suffices, or if a value is negative or NaN.
    """
    if image.mode.startswith("I;16"):
        # Pillow's conversion would clip 16-bit values at 255 and leave a white image.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):  # Pillow clips these as well: values up to 1 would become black
        values = np.asarray(image)
        lowest, highest = float(values.min()), float(values.max())
        white = next((end for end in (1, 255, 65535) if highest <= end), math.nan)
        if not (lowest >= 0 and white > 0):
            raise ValueError(f"values from {lowest:g} to {highest:g} are no shades of grey")
        return Image.fromarray(np.round(values * (255 / white)).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def turn_of(header: Image.Image) -> Image.Transpose | None:
    """Return the rotation by EXIF that makes an image upright; None if none is needed.

    Phones store images in the sensor's orientation. Pillow turns TIFFs by itself; EXIF after the
    pixels of a PNG is ignored.
    """
    if "exif" not in header.info:
        return None
    try:
        return _TURNS.get(header.getexif().get(_ORIENTATION, 1))
    except Exception:  # broken EXIF may hold anything
        return None


def date_taken(data: bytes) -> datetime | None:
    """Return the time an image was taken by its EXIF, in the camera's time zone, or None."""
    try:
        exif = open_image(data, MAX_PIXELS).getexif()
        text = exif.get_ifd(_EXIF_IFD).get(_DATE_TAKEN) or exif.get(_DATE_CHANGED)
        return datetime.strptime(str(text).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except Exception:  # broken EXIF may hold anything
        return None


def upright(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    """Rotate an image to the upright position, by the rotation that `turn_of` returns."""
    return image if turn is None else image.transpose(turn)


def _is_unidentified(error: Exception) -> bool:
    from PIL import UnidentifiedImageError

    # Pillow without AVIF support does not know that format's name.
    return isinstance(error, (UnidentifiedImageError, struct.error, KeyError))


def one_line(error: BaseException) -> str:
    """Shorten a decoder's error message to one line, without paths of its source files."""
    text = " ".join(str(error).split()) or type(error).__name__
    # torchvision's messages start with the path of its own source file.
    text = text.split(".cpp:")[-1].split(", ", 1)[-1] if ".cpp:" in text else text
    return text[:200]
