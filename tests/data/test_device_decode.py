"""Decoding by the batch on a device. Without a GPU the device is the CPU: the same code."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_images

from ncclean.data import device_decode
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.device_decode import DeviceImageDecoder
from ncclean.data.open_image import ImageRejected
from tests import hostile

SPEC = Preprocessing((64, 64), (0.0,) * 3, (1.0,) * 3)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU here"))]  # fmt: skip
TOLERANCE = {"cpu": 2, "cuda": 32}  # nvJPEG interpolates colours otherwise
MEAN_TOLERANCE = 1.5


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
        hostile.encoded(flower, "JPEG")[:9000],  # cut off, which a device may not notice
    ]
    left = ImageDecoder(SPEC, keep_jpegs=True).decode_many(images)
    return {
        number: images[number]
        for number, image in enumerate(left)
        if not isinstance(image, ImageRejected) and image.pixels.dim() == 1
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("broken", [False, True])
def test_a_batch_is_what_its_images_are_one_by_one(device, broken):
    images = jpegs()
    assert list(images) == [0, 3, 6]
    if broken:
        images[9] = images[0][:300] + images[0][-2:]
    found, rejected = DeviceImageDecoder(SPEC, torch.device(device)).decode(images)
    assert {*found, *rejected} == {*images}
    for number, data in images.items():
        expected = ImageDecoder(SPEC).decode_or_reject(data)
        if isinstance(expected, ImageRejected):
            assert str(rejected[number]) == str(expected)
        else:
            difference = found[number].cpu().int() - expected.pixels.int()
            assert difference.abs().max() <= TOLERANCE[device]
            assert difference.abs().float().mean() <= MEAN_TOLERANCE


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("mode", ["shortest", "squash"])
@pytest.mark.parametrize("size", [(640, 427), (427, 640), (90, 100), (64, 64), (64, 100)])
def test_crops_are_those_of_the_resize_of_integers(interpolation, mode, size):
    spec = Preprocessing((64, 64), (0.0,) * 3, (1.0,) * 3, interpolation, mode)
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    photographs = [Image.fromarray(array).resize(size) for array in load_sample_images().images]
    pictures = [*photographs, Image.fromarray(noise)]
    images = [hostile.encoded(picture, "JPEG") for picture in pictures]
    found, _ = DeviceImageDecoder(spec, torch.device("cpu")).decode(dict(enumerate(images)))
    for number, expected in enumerate(ImageDecoder(spec).decode_many(images)):
        assert found[number].dtype == torch.uint8
        assert (found[number].int() - expected.pixels.int()).abs().max() <= 2


def test_calls_are_large_and_halved_at_an_error(monkeypatch, caplog):
    calls, resizes = [], []
    decode_jpeg, interpolate = device_decode.decode_jpeg, F.interpolate

    def decode(buffers, **options):
        calls.append(len(buffers))
        return decode_jpeg(buffers, **options)

    def resize(pixels, **options):
        resizes.append(len(pixels))
        return interpolate(pixels, **options)

    monkeypatch.setattr(device_decode, "decode_jpeg", decode)
    monkeypatch.setattr(F, "interpolate", resize)
    decoder = DeviceImageDecoder(SPEC, torch.device("cpu"))
    large, small = (hostile.encoded(hostile.photo(width), "JPEG") for width in (90, 70))
    images = dict(enumerate([large] * 100 + [small] * 50))
    decoder.decode(images)
    assert calls == [128, 22]
    assert resizes == [100, 100, 28, 28, 22, 22]  # columns, then rows
    calls.clear()
    found, rejected = decoder.decode({1: large, 2: large, 5: large[:300], 6: small})
    assert calls == [4, 2, 2, 1, 1]
    assert (sorted(found), list(rejected)) == ([1, 2, 6], [5])
    assert not caplog.messages
    decoder.decode({5: large[:300]})
    assert caplog.messages == ["cpu decoded none of 1 JPEGs; the CPU does"]


def test_an_empty_batch():
    assert DeviceImageDecoder(SPEC, torch.device("cpu")).decode({}) == ({}, {})
