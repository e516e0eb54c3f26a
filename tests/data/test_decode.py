"""Pixels against open_clip's own transform, and images that must not hurt."""

import io
import resource

import numpy as np
import pytest
import torch
from open_clip.transform import image_transform
from PIL import Image
from sklearn.datasets import load_sample_images

from ncclean.data.augment import TrainingDecoder
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.gate import PixelGate
from ncclean.data.open_image import ImageRejected, decode_whole
from ncclean.data.sample_groups import IMAGE_EXTENSIONS
from tests import hostile

UNIT = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def reference(image: Image.Image, spec: Preprocessing) -> torch.Tensor:
    transform = image_transform(
        spec.size,
        is_train=False,
        resize_mode=spec.resize_mode,
        interpolation=spec.interpolation,
        fill_color=spec.fill_color,
        **UNIT,
    )
    return (transform(image.convert("RGB")) * 255).round().int()


def photographs() -> list[Image.Image]:
    flower, china = (Image.fromarray(array) for array in load_sample_images().images)
    return [flower, china.crop((0, 0, 300, 427)), china.resize((97, 64)), flower.resize((64, 64))]


SPECS = [
    Preprocessing((224, 224), **UNIT),
    Preprocessing((64, 64), interpolation="bilinear", **UNIT),
    Preprocessing((96, 96), resize_mode="squash", **UNIT),
    Preprocessing((96, 64), resize_mode="squash", **UNIT),
    Preprocessing((128, 128), resize_mode="longest", fill_color=7, **UNIT),
    Preprocessing((96, 64), **UNIT),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.size}-{s.resize_mode}")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_equals_open_clips_transform(spec, kind):
    for photo in photographs():
        data = hostile.encoded(photo, kind)
        expected = reference(Image.open(io.BytesIO(data)), spec)
        for fast in (True, False):
            image = ImageDecoder(spec, fast=fast)(data)
            assert (image.width, image.height) == photo.size
            assert image.pixels.dtype == torch.uint8
            assert image.pixels.shape == (3, *spec.size)
            difference = (image.pixels.int() - expected).abs().max()
            assert difference <= (2 if fast else 1)


@pytest.mark.parametrize("name", hostile.images())
def test_hostile_images(name):
    _, data, status = hostile.images()[name]
    decoder = ImageDecoder(Preprocessing((64, 64), **UNIT))
    if status == "ok":
        assert decoder(data).pixels.shape == (3, 64, 64)
    else:
        with pytest.raises(ImageRejected) as rejected:
            decoder(data)
        assert rejected.value.reason.value == status
        assert str(rejected.value)
        assert "\n" not in str(rejected.value)


def test_a_strip_is_cropped_before_it_is_resized():
    """Resizing 30000 x 1 px to 224 px on the short side first would take 4.5 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decoder = ImageDecoder(Preprocessing((224, 224), **UNIT))
    for name in ("line", "line_jpeg", "column"):
        decoder(hostile.images()[name][1])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


@pytest.mark.parametrize("size", [(400, 50), (50, 400), (211, 40)])
def test_cropping_first_changes_no_pixel_by_more_than_rounding(size):
    photo = photographs()[0].resize(size)
    spec = Preprocessing((64, 64), **UNIT)
    expected = reference(photo, spec)
    found = ImageDecoder(spec)(hostile.encoded(photo, "PNG")).pixels
    assert (found.int() - expected).abs().max() <= 2


@pytest.mark.parametrize(
    ("white", "kind", "file"),
    [
        (65535, np.uint16, "PNG"), (65535, np.int32, "TIFF"), (65535, np.float32, "TIFF"),
        (255, np.int32, "TIFF"), (255, np.float32, "TIFF"), (1, np.float32, "TIFF"),
    ],
)  # fmt: skip
def test_numbers_of_other_widths_are_scaled_not_clipped(white, kind, file):
    ramp = np.tile(np.linspace(0, white, 64).astype(kind), (64, 1))
    data = hostile.encoded(Image.fromarray(ramp), file)
    pixels = ImageDecoder(Preprocessing((64, 64), **UNIT))(data).pixels
    assert pixels[0, 0, :].tolist() == pytest.approx(list(range(0, 256, 4)), abs=4)


@pytest.mark.parametrize("value", [-1.0, 70_000.0, float("nan")])
def test_numbers_that_are_no_shades_are_refused(value):
    values = np.full((8, 8), value, np.float32)
    with pytest.raises(ImageRejected, match="no shades of grey"):
        ImageDecoder(Preprocessing((8, 8), **UNIT))(
            hostile.encoded(Image.fromarray(values), "TIFF")
        )


def stored(orientation, kind):
    """A picture whose left half is dark and whose top is red, stored as EXIF's orientation says."""
    levels = np.zeros((60, 90, 3), np.uint8)
    levels[:, 45:] = 160
    levels[:20, :, 0] = 250
    turns = {
        1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a, 1),
        7: lambda a: a.swapaxes(0, 1)[::-1, ::-1], 8: lambda a: np.rot90(a, -1),
    }  # fmt: skip
    image = Image.fromarray(np.ascontiguousarray(turns[orientation](levels)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright_by_their_exif(orientation, kind):
    spec = Preprocessing((30, 30), **UNIT)
    data, plain = stored(orientation, kind), stored(1, kind)
    for options in ({}, {"fast": False}, {"draft": True}):
        upright = ImageDecoder(spec, **options)(data)
        expected = ImageDecoder(spec, **options)(plain).pixels
        assert (upright.pixels.int() - expected.int()).abs().max() < 40
        assert (upright.pixels.int() - expected.int()).abs().float().mean() < 3
        # Pillow itself turns TIFF.
        assert upright.is_turned == (orientation > 1 and kind != "TIFF")
    whole = np.asarray(decode_whole(data, 90, PixelGate()), int)
    assert whole.shape == (60, 90, 3)
    assert np.abs(whole - np.asarray(decode_whole(plain, 90, PixelGate()), int)).mean() < 3
    crop = TrainingDecoder(spec).crop(data, 5)
    assert (crop.int() - TrainingDecoder(spec).crop(plain, 5).int()).abs().float().mean() < 3


def test_a_draft_of_a_turned_picture_is_as_large_as_the_crop():
    """Turned by a quarter, each side of the draft is compared with the other one of the crop."""
    stripes = (np.arange(1280) // 3 % 2 * 255).astype(np.uint8)
    upright = Image.fromarray(np.tile(stripes[:, None, None], (1, 1920, 3)))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    upright.transpose(Image.Transpose.ROTATE_90).save(file, "JPEG", quality=95, exif=exif)
    spec = Preprocessing((400, 40), **UNIT, resize_mode="squash")
    draft, whole = (
        ImageDecoder(spec, draft=draft)(file.getvalue()).pixels.int() for draft in (True, False)
    )
    assert (draft - whole).abs().float().mean() < 25


def test_without_exif_pictures_lie_as_open_clip_sees_them():
    spec = Preprocessing((30, 30), **UNIT)
    left = ImageDecoder(spec, exif=False)(stored(6, "JPEG"))
    lying = Image.open(io.BytesIO(stored(6, "JPEG")))
    file = io.BytesIO()
    Image.fromarray(np.asarray(lying)).save(file, "PNG")
    assert (left.pixels.int() - ImageDecoder(spec)(file.getvalue()).pixels.int()).abs().max() < 30
    assert not left.is_turned


def test_a_device_is_left_upright_jpegs_alone():
    decoder = ImageDecoder(Preprocessing((30, 30), **UNIT), keep_jpegs=True)
    assert [decoder(stored(o, "JPEG")).pixels.dim() for o in (1, 6)] == [1, 3]


@pytest.mark.parametrize("broken", [b"", b"Exif\0\0", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"\0" * 64])
def test_broken_exif_turns_nothing(broken):
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(file, "JPEG", exif=broken)
    assert not ImageDecoder(Preprocessing((30, 30), **UNIT))(file.getvalue()).is_turned


def test_the_limit_counts_pixels_and_the_header_is_enough():
    decoder = ImageDecoder(Preprocessing((64, 64), **UNIT), max_pixels=90 * 70 - 1)
    with pytest.raises(ImageRejected, match="90 x 70 pixels") as rejected:
        decoder(hostile.JPEG[:700])
    assert (rejected.value.width, rejected.value.height) == (90, 70)


@pytest.mark.parametrize("size", [(640, 427), (900, 600), (64, 64), (127, 200)])
def test_draft_changes_large_jpegs_alone_and_little(size):
    photo = photographs()[0].resize(size, Image.Resampling.BICUBIC)
    spec = Preprocessing((64, 64), **UNIT)
    for kind in ("JPEG", "PNG"):
        data = hostile.encoded(photo, kind)
        whole, draft = (ImageDecoder(spec, draft=draft)(data) for draft in (False, True))
        assert (draft.width, draft.height) == size
        difference = (whole.pixels.int() - draft.pixels.int()).abs().float()
        if kind == "JPEG" and min(size) >= 128:
            assert 0 < difference.mean() < 4
        else:
            assert not difference.any()


def test_draft_still_refuses_what_is_broken():
    data = hostile.encoded(photographs()[0].resize((640, 427)), "JPEG")
    decoder = ImageDecoder(Preprocessing((64, 64), **UNIT), draft=True)
    with pytest.raises(ImageRejected) as rejected:
        decoder(data[: len(data) // 2])
    assert rejected.value.reason.value == "image_corrupt"
    assert (rejected.value.width, rejected.value.height) == (640, 427)


def test_heic_of_phones_is_read_where_its_extra_is_installed():
    pillow_heif = pytest.importorskip("pillow_heif")
    levels = np.zeros((60, 90, 3), np.uint8)
    levels[:, 45:] = 160
    file = io.BytesIO()
    pillow_heif.register_heif_opener()
    Image.fromarray(levels).save(file, "HEIF", quality=95)
    image = ImageDecoder(Preprocessing((30, 30), **UNIT))(file.getvalue())
    expected = ImageDecoder(Preprocessing((30, 30), **UNIT))(
        hostile.encoded(Image.fromarray(levels), "PNG")
    )
    assert (image.width, image.height) == (90, 60)
    assert (image.pixels.int() - expected.pixels.int()).abs().float().mean() < 5
    assert "heic" in IMAGE_EXTENSIONS
