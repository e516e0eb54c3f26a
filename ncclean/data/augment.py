"""Training crops: open_clip's training transform, reproducible sample by sample.

`RandomResizedCrop` with 90 to 100 % of the area and an aspect ratio of 3/4 to 4/3, bicubic. The
crop depends on the sample's own seed, so a resumed epoch, or another number of threads, sees the
same pixels; torchvision draws from one generator that all threads share.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from ncclean.data.decode import ImageDecoder, byte_tensor
from ncclean.data.open_image import (
    ON_ITS_SIDE,
    ImageRejected,
    one_line,
    open_image,
    to_rgb,
    upright,
)
from ncclean.data.samples import SkipReason

_RATIO = (3 / 4, 4 / 3)
_TRIES = 10


@dataclass(frozen=True)
class CropBox:
    """A window of an image: its corner and its size, in pixels."""

    left: int
    top: int
    width: int
    height: int


def random_crop(
    width: int, height: int, rng: random.Random, scale: tuple[float, float] = (0.9, 1.0)
) -> CropBox:
    """Draw a random crop: a share of the image's area, at a random place.

    After `_TRIES` windows that do not fit, the largest central one within the ratios (Szegedy et
    al. 2015, as torchvision has it).
    """
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*scale)
        ratio = math.exp(rng.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return CropBox(rng.randint(0, width - w), rng.randint(0, height - h), w, h)
    ratio = min(max(width / height, _RATIO[0]), _RATIO[1])
    w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
    return CropBox((width - w) // 2, (height - h) // 2, max(w, 1), max(h, 1))


class TrainingDecoder(ImageDecoder):
    """Decodes image bytes to a uint8 (3, H, W) random training crop; safe in several threads."""

    def crop(self, data: bytes, seed: int) -> torch.Tensor:
        """Decode an image and take the random crop given by the seed. Raises `ImageRejected`."""
        header = open_image(data, self.max_pixels)
        turn = self.turn_of(header)
        size = header.size[::-1] if turn in ON_ITS_SIDE else header.size
        box = random_crop(*size, random.Random(seed))
        try:
            with self.gate.hold(header.size[0] * header.size[1]):
                return self._cropped(data, header, turn, box)
        except Exception as error:  # decoders raise any error on hostile bytes
            raise ImageRejected(SkipReason.IMAGE_CORRUPT, one_line(error), *header.size) from error

    def _cropped(
        self, data: bytes, header: Image.Image, turn: Image.Transpose | None, box: CropBox
    ) -> torch.Tensor:
        height, width = self.preprocessing.size
        if self.takes_fast_path(header):
            whole = decode_jpeg(
                byte_tensor(data), ImageReadMode.RGB, apply_exif_orientation=turn is not None
            )
            window = whole[None, :, box.top : box.top + box.height, box.left : box.left + box.width]
            resized = F.interpolate(window, size=(height, width), mode="bicubic", antialias=True)
            return resized[0]
        corner = (box.left, box.top, box.left + box.width, box.top + box.height)
        image = (
            upright(to_rgb(header), turn)
            .crop(corner)
            .resize((width, height), Image.Resampling.BICUBIC)
        )
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)
