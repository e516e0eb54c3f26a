"""Training crops: the window of the picture that the seed says, whichever way it is decoded."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from ncclean.data.augment import TrainingDecoder, random_crop
from ncclean.data.decode import Preprocessing
from ncclean.data.open_image import ImageRejected
from tests import hostile

SPEC = Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3)


def slopes(width, height):
    """Red rises from left to right, green from top to bottom, by one a pixel."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(width), np.arange(height)[:, None]
    return hostile.encoded(Image.fromarray(pixels), "JPEG", quality=100, subsampling=0)


@pytest.mark.parametrize("size", [(240, 120), (120, 240)])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_crop_is_the_window_of_its_seed(size, fast, seed):
    box = random_crop(*size, random.Random(seed))
    assert box.width != box.height
    crop = TrainingDecoder(SPEC, fast=fast).crop(slopes(*size), seed).float()
    assert crop.shape == (3, 32, 32)
    left, right = crop[0, :, 0].mean(), crop[0, :, -1].mean()
    top, bottom = crop[1, 0].mean(), crop[1, -1].mean()
    pixel = torch.tensor([box.width, box.height]) / 32  # of the crop, in those of the picture
    expected = [box.left + pixel[0] / 2, box.left + box.width - pixel[0] / 2]
    expected += [box.top + pixel[1] / 2, box.top + box.height - pixel[1] / 2]
    found = torch.stack([left, right, top, bottom])
    assert torch.allclose(found, torch.stack(expected), atol=3.5)


def test_a_broken_picture_is_rejected_with_its_size():
    with pytest.raises(ImageRejected) as rejected:
        TrainingDecoder(SPEC).crop(hostile.JPEG[: len(hostile.JPEG) // 2], 0)
    assert (rejected.value.width, rejected.value.height) == (90, 70)
