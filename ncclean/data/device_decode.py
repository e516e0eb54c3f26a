"""JPEGs decoded on the device that encodes them, a chunk at a time.

A GPU that encodes tens of thousands of images a second waits for the few thousand that its
machine's cores can decode; its own JPEG decoder (nvJPEG, through torchvision) does not. It rounds
differently from libjpeg, so pixels differ by a few levels from those of `ImageDecoder`, and it may
accept a truncated file that libjpeg refuses: a run is made one way or the other, never both.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import torch
from torchvision.io import ImageReadMode, decode_jpeg

from ncclean.data.decode import (
    DecodedImage,
    ImageDecoder,
    Preprocessing,
    byte_tensor,
    resize_tensor,
)
from ncclean.data.open_image import ImageRejected
from ncclean.options import MAX_PIXELS

logger = logging.getLogger(__name__)


class DeviceImageDecoder(ImageDecoder):
    """Plain JPEGs on `device`, in one call per chunk; everything else as `ImageDecoder` does."""

    def __init__(
        self, preprocessing: Preprocessing, device: torch.device, max_pixels: int = MAX_PIXELS
    ) -> None:
        super().__init__(preprocessing, max_pixels)
        self.device = device

    def decode_many(self, images: Sequence[bytes]) -> list[DecodedImage | ImageRejected]:
        """Decode a batch of images, plain JPEGs on the device; pixels are complete on return.

        A chunk that the device refuses is decoded image by image on the CPU, which tells which
        of them is corrupt.
        """
        headers = [self.open_checked(data) for data in images]
        chosen = [
            index
            for index, header in enumerate(headers)
            if not isinstance(header, ImageRejected) and self.takes_fast_path(header)
        ]
        on_device: dict[int, torch.Tensor] = {}
        try:
            on_device = self._decode([images[index] for index in chosen], chosen)
        except RuntimeError as error:
            logger.debug("a chunk is decoded on the CPU: %s", error)
        decoded: list[DecodedImage | ImageRejected] = []
        for index, (data, header) in enumerate(zip(images, headers, strict=True)):
            if index in on_device and not isinstance(header, ImageRejected):
                decoded.append(DecodedImage(on_device[index], *header.size))
            else:
                decoded.append(self.decode_or_reject(data))
        return decoded

    def _decode(self, images: list[bytes], index: list[int]) -> dict[int, torch.Tensor]:
        if not images:
            return {}
        buffers = [byte_tensor(data) for data in images]
        with self._own_stream():
            decoded = decode_jpeg(buffers, mode=ImageReadMode.RGB, device=self.device)
            return {
                place: resize_tensor(pixels, self.preprocessing)
                for place, pixels in zip(index, decoded, strict=True)
            }

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Work beside the encoder's stream, and be through with it at the end."""
        if self.device.type != "cuda":
            yield
            return
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()
