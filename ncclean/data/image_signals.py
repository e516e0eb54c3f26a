"""Compute signals of an image: blur, brightness, entropy and hashes.

Computed as in cleanvision (0.3), so that its thresholds hold, on the pixels before the model's
resizing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFilter, ImageStat

TYPES: Mapping[str, pa.DataType] = {
    "blur": pa.float32(),
    "brightness": pa.float32(),
    "entropy": pa.float32(),
    "image_hash": pa.string(),
    "image_dhash": pa.string(),
}
VERSION = "1"
_BLUR_PIXELS = 64
_PERCEIVED = np.array([0.241, 0.691, 0.068])  # red, green, blue


def image_signals(image: Image.Image) -> dict[str, float | str]:
    """Return blur, brightness, entropy and hashes of an RGB or grey image, by name.

    `blur` is the standard deviation of the edges at 64 pixels, low for a blurred image;
    `brightness` the perceived mean in [0, 1]; `entropy` that of the histogram in bits. `image_hash`
    is the MD5 of the pixels, `image_dhash` 64 bits of which near-duplicates share nearly all:
    whether the grey value rises from one of 9 x 8 fields to the next.
    """
    return {
        "blur": _edges(image),
        "brightness": _brightness(image),
        "entropy": float(image.entropy()),
        "image_hash": hashlib.md5(image.tobytes(), usedforsecurity=False).hexdigest(),
        "image_dhash": _difference_hash(image),
    }


def _edges(image: Image.Image) -> float:
    ratio = max(image.size) / _BLUR_PIXELS
    if ratio > 1:
        width, height = (max(int(side // ratio), 1) for side in image.size)
        image = image.resize((width, height))
    edges = image.convert("L").filter(ImageFilter.FIND_EDGES)
    return math.sqrt(ImageStat.Stat(edges).var[0])


def _brightness(image: Image.Image) -> float:
    means = np.array(ImageStat.Stat(image).mean)
    return float(np.sqrt((_PERCEIVED * means**2).sum()) / 255)


def _difference_hash(image: Image.Image) -> str:
    small = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.LANCZOS))
    return np.packbits(small[:, 1:] > small[:, :-1]).tobytes().hex()
