"""Decode JPEGs, a batch at a time, on the device that encodes them.

A GPU that encodes tens of thousands of images a second waits for the few thousand that its
machine's cores can decode; its own JPEG decoder (nvJPEG, through torchvision) does not. It rounds
differently from libjpeg, so pixels differ by a few levels from those of `ImageDecoder`, and may
accept a truncated file that libjpeg refuses: a run uses one decoder or the other, never both.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torchvision.io import ImageReadMode, decode_jpeg

from ncclean.base.options import MAX_PIXELS
from ncclean.data.decode import ImageDecoder, Preprocessing, byte_tensor, geometry
from ncclean.data.open_image import ImageRejected

logger = logging.getLogger(__name__)

_IMAGES_AT_ONCE = 128


class DeviceImageDecoder:
    """Decodes plain JPEGs on `device`, in calls of 128."""

    def __init__(
        self, preprocessing: Preprocessing, device: torch.device, max_pixels: int = MAX_PIXELS
    ) -> None:
        self._on_cpu = ImageDecoder(preprocessing, max_pixels, exif=False)  # it rotates none
        self._preprocessing = preprocessing
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def decode(
        self, images: Mapping[int, bytes]
    ) -> tuple[dict[int, torch.Tensor], dict[int, ImageRejected]]:
        """Decode images; return their uint8 (3, H, W) crops, and why others have none.

        The crops are complete on return. The CPU decodes what the device refuses, and reports what
        is wrong with it.
        """
        good: dict[int, torch.Tensor] = {}
        rejected: dict[int, ImageRejected] = {}
        rows = list(images)
        with self._beside_the_encoder():
            for start in range(0, len(rows), _IMAGES_AT_ONCE):
                good |= self._crops({n: images[n] for n in rows[start : start + _IMAGES_AT_ONCE]})
        if rows and not good:
            logger.warning("%s decoded none of %d JPEGs; the CPU does", self._device, len(rows))
        for row in rows:
            if row in good:
                continue
            image = self._on_cpu.decode_or_reject(images[row])
            if isinstance(image, ImageRejected):
                rejected[row] = image
            else:
                good[row] = image.pixels.to(self._device)
        return good, rejected

    def _crops(self, images: Mapping[int, bytes]) -> dict[int, torch.Tensor]:
        """Return the crops of the images that the device accepts.

        Images of one size are resized together. A call that fails, because of a corrupt image or
        lack of memory, is repeated for each half.
        """
        alike: defaultdict[torch.Size, list[int]] = defaultdict(list)
        crops: dict[int, torch.Tensor] = {}
        try:
            buffers = [byte_tensor(data) for data in images.values()]
            pixels = decode_jpeg(buffers, mode=ImageReadMode.RGB, device=self._device)
            decoded = dict(zip(images, pixels, strict=True))
            for row, one in decoded.items():
                alike[one.shape].append(row)
            for rows in alike.values():
                of_one_size = torch.stack([decoded[row] for row in rows])
                crops |= zip(rows, _resized(of_one_size, self._preprocessing), strict=True)
        except RuntimeError as error:
            if len(images) == 1:
                logger.debug("an image is decoded on the CPU: %s", error)
                return {}
            rows, half = list(images), len(images) // 2
            return self._crops({row: images[row] for row in rows[:half]}) | self._crops(
                {row: images[row] for row in rows[half:]}
            )
        return crops

    @contextlib.contextmanager
    def _beside_the_encoder(self) -> Iterator[None]:
        """Work on a separate stream, and synchronise at the end."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()


def _resized(pixels: torch.Tensor, spec: Preprocessing) -> torch.Tensor:
    """Resize (N, 3, h, w) uint8 to (N, 3, H, W) uint8, within 2 of 255 levels of `resize_tensor`.

    CUDA has no antialiased resize of integers. As on a CPU, columns come before rows, and are
    rounded and clipped to a byte in between.
    """
    height, width = pixels.shape[-2:]
    new_height, new_width, top, left = geometry(width, height, spec)
    values = pixels.float()
    for size in ((height, new_width), (new_height, new_width)):
        if size != tuple(values.shape[-2:]):
            values = F.interpolate(values, size=size, mode=spec.interpolation, antialias=True)
            values = values.clamp_(0, 255).round_()
    return values[..., top : top + spec.size[0], left : left + spec.size[1]].byte()
