"""Decoding by the batch on a device. Without a GPU the device is the CPU: the same code."""

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.data.open_image import ImageRejected
from tests import hostile

SPEC = Preprocessing((64, 64), (0.0,) * 3, (1.0,) * 3)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU here"))]  # fmt: skip


def jpegs() -> dict[int, bytes]:
    """Those that a reader leaves to the device, by number."""
    flower, china = (Image.fromarray(array) for array in load_sample_images().images)
    images = [
        hostile.encoded(flower, "JPEG"),
        hostile.encoded(china, "PNG"),
        b"not an image",
        hostile.encoded(china.convert("L"), "JPEG"),
        hostile.encoded(flower.resize((300, 40)), "JPEG"),  # a strip: Pillow's
        hostile.encoded(china.convert("CMYK"), "JPEG"),
        hostile.encoded(china.resize((100, 90)), "JPEG"),
    ]
    left = ImageDecoder(SPEC, keep_jpegs=True).decode_many(images)
    return {
        number: images[number]
        for number, image in enumerate(left)
        if not isinstance(image, ImageRejected) and image.pixels.dim() == 1
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("truncated", [False, True])
def test_a_batch_is_what_its_images_are_one_by_one(device, truncated):
    images = jpegs()
    assert list(images) == [0, 3, 6]
    if truncated:
        images[9] = images[0][: len(images[0]) // 3]
    tolerance = 0 if device == "cpu" else 4
    found, rejected = DeviceImageDecoder(SPEC, torch.device(device)).decode(images)
    assert {*found, *rejected} == {*images}
    for number, data in images.items():
        expected = ImageDecoder(SPEC).decode_or_reject(data)
        if isinstance(expected, ImageRejected):
            assert str(rejected[number]) == str(expected)
        else:
            difference = found[number].cpu().int() - expected.pixels.int()
            assert difference.abs().max() <= tolerance


def test_an_empty_batch():
    assert DeviceImageDecoder(SPEC, torch.device("cpu")).decode({}) == ({}, {})
