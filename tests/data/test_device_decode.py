"""Decoding by the chunk on a device. Without a GPU the device is the CPU: the same code, less its
streams."""

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from ncclean.data.decode import DecodedImage, ImageDecoder, Preprocessing
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.data.open_image import ImageRejected
from tests import hostile

SPEC = Preprocessing((64, 64), (0.0,) * 3, (1.0,) * 3)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU here"))]  # fmt: skip


def chunk() -> list[bytes]:
    flower, china = (Image.fromarray(array) for array in load_sample_images().images)
    jpeg = hostile.encoded(flower, "JPEG")
    return [
        jpeg,
        hostile.encoded(china, "PNG"),
        b"not an image",
        hostile.encoded(china.convert("L"), "JPEG"),
        hostile.encoded(flower.resize((300, 40)), "JPEG"),  # a strip: Pillow's
        hostile.encoded(china.convert("CMYK"), "JPEG"),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("truncated", [False, True])
def test_a_chunk_is_what_its_images_are_one_by_one(device, truncated):
    images = chunk()
    if truncated:
        images.append(images[0][: len(images[0]) // 3])
    tolerance = 0 if device == "cpu" else 4
    one_by_one = ImageDecoder(SPEC).decode_many(images)
    found = DeviceImageDecoder(SPEC, torch.device(device)).decode_many(images)
    assert len(found) == len(images)
    for each, expected in zip(found, one_by_one, strict=True):
        if isinstance(expected, ImageRejected):
            assert isinstance(each, ImageRejected)
            assert (each.reason, str(each)) == (expected.reason, str(expected))
        else:
            assert isinstance(each, DecodedImage)
            assert (each.width, each.height) == (expected.width, expected.height)
            difference = each.pixels.cpu().int() - expected.pixels.int()
            assert difference.abs().max() <= tolerance


def test_an_empty_chunk():
    assert DeviceImageDecoder(SPEC, torch.device("cpu")).decode_many([]) == []
