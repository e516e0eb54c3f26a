"""JPEGs decoded on the device that encodes them, many in one call.

A GPU that encodes tens of thousands of images a second waits for the few thousand that its
machine's cores can decode; its own JPEG decoder (nvJPEG, through torchvision) does not. It rounds
differently from libjpeg, so pixels differ by a few levels from those of `ImageDecoder`, and it may
accept a truncated file that libjpeg refuses: a run is made one way or the other, never both.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torchvision.io import ImageReadMode, decode_jpeg

from ncclean.data.decode import DecodedImage, ImageDecoder, Preprocessing, byte_tensor, geometry
from ncclean.data.open_image import ImageRejected, one_line
from ncclean.options import MAX_PIXELS

logger = logging.getLogger(__name__)


# Decoded at a time: as uint8 and twice as float32, 128 images of a megapixel take 3 GB.
_PIXELS_AT_ONCE = 128 << 20


class DeviceImageDecoder(ImageDecoder):
    """Plain JPEGs on `device`, in one call per chunk; everything else as `ImageDecoder` does."""

    chunk_images = 128

    def __init__(
        self, preprocessing: Preprocessing, device: torch.device, max_pixels: int = MAX_PIXELS
    ) -> None:
        super().__init__(preprocessing, max_pixels)
        self.device = device
        self._of_thread = threading.local()
        self._told = False

    def decode_many(self, images: Sequence[bytes]) -> list[DecodedImage | ImageRejected]:
        """Decode a batch of images, plain JPEGs on the device; pixels are complete on return.

        An image that the device refuses is decoded on the CPU, which tells what is wrong with it.
        """
        headers = [self.open_checked(data) for data in images]
        sizes = {
            index: header.size
            for index, header in enumerate(headers)
            if not isinstance(header, ImageRejected) and self.takes_fast_path(header)
        }
        crops: dict[int, torch.Tensor] = {}
        with self._own_stream():
            for chosen in _bounded(sizes):
                crops |= self._crops(self._decode({index: images[index] for index in chosen}))
        return [
            DecodedImage(crops[index], *sizes[index])
            if index in crops
            else self.decode_or_reject(data)
            for index, data in enumerate(images)
        ]

    def _decode(self, images: dict[int, bytes]) -> dict[int, torch.Tensor]:
        """(3, h, w) uint8 of each image, by its place, but of those that the device refuses."""
        try:
            decoded = decode_jpeg(
                [byte_tensor(data) for data in images.values()],
                mode=ImageReadMode.RGB,
                device=self.device,
            )
        except RuntimeError as error:  # of all, because of one
            if len(images) == 1:
                logger.debug("an image is decoded on the CPU: %s", error)
                return {}
            places, half = list(images), len(images) // 2
            return self._decode({place: images[place] for place in places[:half]}) | self._decode(
                {place: images[place] for place in places[half:]}
            )
        return dict(zip(images, decoded, strict=True))

    def _crops(self, decoded: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The (3, H, W) uint8 crops of decoded images; those of one size are resized together."""
        alike: defaultdict[torch.Size, list[int]] = defaultdict(list)
        for place, pixels in decoded.items():
            alike[pixels.shape].append(place)
        crops: dict[int, torch.Tensor] = {}
        for places in alike.values():
            pixels = torch.stack([decoded.pop(place) for place in places])
            try:
                crops |= zip(places, _resized(pixels, self.preprocessing), strict=True)
            except RuntimeError as error:  # a size that CUDA's kernel cannot shrink as much
                if not self._told:
                    self._told = True
                    logger.warning("some images are decoded on the CPU: %s", one_line(error))
        return crops

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Work beside the encoder's stream, and be through with it at the end."""
        if self.device.type != "cuda":
            yield
            return
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._of_thread.stream):
            yield
        self._of_thread.stream.synchronize()


def _resized(pixels: torch.Tensor, spec: Preprocessing) -> torch.Tensor:
    """(N, 3, h, w) uint8 -> (N, 3, H, W) uint8, within 2 of 255 levels of `resize_tensor`.

    CUDA has no antialiased resize of integers. As on a CPU, columns come before rows and are
    rounded and cut to a byte in between.
    """
    height, width = pixels.shape[-2:]
    new_height, new_width, top, left = geometry(width, height, spec)
    values = pixels.float()
    for size in ((height, new_width), (new_height, new_width)):
        if size != tuple(values.shape[-2:]):
            values = F.interpolate(values, size=size, mode=spec.interpolation, antialias=True)
            values = values.clamp_(0, 255).round_()
    return values[..., top : top + spec.size[0], left : left + spec.size[1]].byte()


def _bounded(sizes: dict[int, tuple[int, int]]) -> Iterator[list[int]]:
    """Cut images, by place and size, into lists of at most `_PIXELS_AT_ONCE`, or of one."""
    chosen: list[int] = []
    pixels = 0
    for index, (width, height) in sizes.items():
        pixels += width * height
        if chosen and pixels > _PIXELS_AT_ONCE:
            yield chosen
            chosen, pixels = [], width * height
        chosen.append(index)
    if chosen:
        yield chosen
