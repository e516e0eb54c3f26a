"""Decoding by the chunk on a device. Without a GPU the device is the CPU: the same code, less its
streams."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_images

from ncclean.data import device_decode
from ncclean.data.decode import DecodedImage, ImageDecoder, Preprocessing
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.data.open_image import ImageRejected
from tests import hostile

SPEC = Preprocessing((64, 64), (0.0,) * 3, (1.0,) * 3)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU here"))]  # fmt: skip
TOLERANCE = {"cpu": 2, "cuda": 6}  # nvJPEG is another decoder, too


@pytest.fixture(scope="module")
def photographs():
    return [Image.fromarray(array) for array in load_sample_images().images]


def chunk(photographs) -> list[bytes]:
    flower, china = photographs
    jpeg = hostile.encoded(flower, "JPEG")
    return [
        jpeg,
        hostile.encoded(china, "PNG"),
        b"not an image",
        hostile.encoded(china.convert("L"), "JPEG"),
        hostile.encoded(flower.resize((300, 40)), "JPEG"),  # a strip: Pillow's
        hostile.encoded(china.convert("CMYK"), "JPEG"),
        jpeg[: len(jpeg) // 3],
        hostile.encoded(china.resize((200, 100)), "JPEG"),
        hostile.encoded(china, "JPEG"),
    ]


def assert_alike(found, expected, tolerance):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, ImageRejected):
            assert isinstance(one, ImageRejected)
            assert (one.reason, str(one)) == (other.reason, str(other))
        else:
            assert isinstance(one, DecodedImage)
            assert (one.width, one.height) == (other.width, other.height)
            assert one.pixels.dtype == torch.uint8
            difference = one.pixels.cpu().int() - other.pixels.int()
            assert difference.abs().max() <= tolerance


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pixels", [1, 400_000, 128 << 20])
def test_a_chunk_is_what_its_images_are_one_by_one(device, pixels, photographs, monkeypatch):
    """However many images are decoded at a time, and with a corrupt one among them."""
    monkeypatch.setattr(device_decode, "_PIXELS_AT_ONCE", pixels)
    images = chunk(photographs)
    found = DeviceImageDecoder(SPEC, torch.device(device)).decode_many(images)
    assert_alike(found, ImageDecoder(SPEC).decode_many(images), TOLERANCE[device])


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("mode", ["shortest", "squash"])
@pytest.mark.parametrize("size", [(640, 427), (427, 640), (90, 100), (64, 64), (64, 100)])
def test_crops_are_those_of_the_resize_of_integers(photographs, interpolation, mode, size):
    spec = Preprocessing((64, 64), (0.0,) * 3, (1.0,) * 3, interpolation, mode)
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    pictures = [*(photograph.resize(size) for photograph in photographs), Image.fromarray(noise)]
    images = [hostile.encoded(picture, "JPEG") for picture in pictures]
    found = DeviceImageDecoder(spec, torch.device("cpu")).decode_many(images)
    assert_alike(found, ImageDecoder(spec).decode_many(images), 2)


def test_a_chunk_takes_one_call_and_a_resize_for_each_size(photographs, monkeypatch):
    calls, resizes = [], []

    def decode(data, **options):
        calls.append(len(data))
        return device_decode_jpeg(data, **options)

    def interpolate(pixels, **options):
        resizes.append(tuple(pixels.shape[:1]))
        return resize(pixels, **options)

    device_decode_jpeg, resize = device_decode.decode_jpeg, F.interpolate
    flower, china = photographs
    images = [hostile.encoded(flower, "JPEG"), hostile.encoded(china, "JPEG")] * 8
    images.append(hostile.encoded(china.resize((200, 150)), "JPEG"))
    decoder = DeviceImageDecoder(SPEC, torch.device("cpu"))
    with monkeypatch.context() as patched:
        patched.setattr(device_decode, "decode_jpeg", decode)
        patched.setattr(F, "interpolate", interpolate)
        decoder.decode_many(images)
    assert calls == [17]
    assert sorted(resizes) == [(1,), (1,), (16,), (16,)]


def test_an_empty_chunk():
    assert DeviceImageDecoder(SPEC, torch.device("cpu")).decode_many([]) == []
