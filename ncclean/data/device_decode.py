"""JPEGs decoded on the device that encodes them, a batch at a time.

A GPU that encodes tens of thousands of images a second waits for the few thousand that its
machine's cores can decode; its own JPEG decoder (nvJPEG, through torchvision) does not. It rounds
differently from libjpeg, so pixels differ by a few levels from those of `ImageDecoder`, and it may
accept a truncated file that libjpeg refuses: a run is made one way or the other, never both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torchvision.io import ImageReadMode, decode_jpeg

from ncclean.data.decode import ImageDecoder, Preprocessing, byte_tensor, resize_tensor
from ncclean.data.open_image import ImageRejected
from ncclean.options import MAX_PIXELS

logger = logging.getLogger(__name__)


class DeviceImageDecoder:
    """Decodes plain JPEGs on `device`, in one call for each batch."""

    def __init__(
        self, preprocessing: Preprocessing, device: torch.device, max_pixels: int = MAX_PIXELS
    ) -> None:
        self._on_cpu = ImageDecoder(preprocessing, max_pixels)
        self._preprocessing = preprocessing
        self._device = device

    def decode(
        self, images: Mapping[int, bytes]
    ) -> tuple[dict[int, torch.Tensor], dict[int, ImageRejected]]:
        """Decode images; returns their uint8 (3, H, W) crops, and why others have none.

        A batch that the device refuses is decoded image by image on the CPU, which tells which of
        them is corrupt.
        """
        if not images:
            return {}, {}
        try:
            buffers = [byte_tensor(data) for data in images.values()]
            decoded = decode_jpeg(buffers, mode=ImageReadMode.RGB, device=self._device)
            crops = [resize_tensor(pixels, self._preprocessing) for pixels in decoded]
            return dict(zip(images, crops, strict=True)), {}
        except RuntimeError as error:
            logger.debug("a batch is decoded on the CPU: %s", error)
        good: dict[int, torch.Tensor] = {}
        rejected: dict[int, ImageRejected] = {}
        for row, data in images.items():
            image = self._on_cpu.decode_or_reject(data)
            if isinstance(image, ImageRejected):
                rejected[row] = image
            else:
                good[row] = image.pixels.to(self._device)
        return good, rejected
