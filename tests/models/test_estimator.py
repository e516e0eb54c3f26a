"""The estimator against open_clip itself, for every kind of tower."""

import io
import threading
import time

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images

from ncclean.data.decode import ImageDecoder
from ncclean.errors import ModelError
from ncclean.models.building import weights_fingerprint
from ncclean.models.checkpoint import matching_architectures
from ncclean.models.devices import resolve_precision
from ncclean.models.estimator import Estimator
from tests import hostile
from tests.conftest import write_model

CAPTIONS = [
    "a red circle",
    "a photo of two dogs playing in the snow near a very old wooden barn at dusk",
    "cat",
    "",
    "word " * 300,
]
VISION = {"image_size": 48, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
SIGLIP_TEXT = {
    **TEXT,
    "context_length": 64,
    "no_causal_mask": True,
    "pool_type": "last",
    "proj_bias": True,
}
ARCHITECTURES = {
    "clip": {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT},
    "custom_text": {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT, "custom_text": True},
    "quick_gelu": {"embed_dim": 32, "quick_gelu": True, "vision_cfg": VISION, "text_cfg": TEXT},
    "linear_projection": {
        "embed_dim": 32,
        "vision_cfg": VISION,
        "text_cfg": {**TEXT, "proj_bias": True},
    },
    "siglip": {
        "embed_dim": 64,  # what the timm tower gives without a projection
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {
            "image_size": 160,
            "timm_model_name": "test_vit",
            "timm_model_pretrained": False,
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": SIGLIP_TEXT,
    },
    "large_context": {
        "embed_dim": 32,
        "vision_cfg": VISION,
        "text_cfg": {**TEXT, "context_length": 128},
    },
}
PREPROCESSING = {
    "siglip": {
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "interpolation": "bicubic",
        "resize_mode": "squash",
    },
    "custom_text": {"mean": [0.1, 0.2, 0.3], "std": [0.9, 0.8, 0.7], "interpolation": "bilinear"},
}
TRIMS = {"clip", "custom_text", "quick_gelu", "linear_projection", "large_context"}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request, tmp_path_factory):
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    return name, write_model(folder, {**ARCHITECTURES[name]}, PREPROCESSING.get(name))


def photographs():
    flower, china = (Image.fromarray(array) for array in load_sample_images().images)
    return [flower, china, china.crop((0, 0, 300, 427)), flower.resize((80, 60))]


def test_equals_open_clip(architecture):
    name, folder = architecture
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    estimator = Estimator.load(f"local-dir:{folder}", precision="fp32", device="cpu")
    files = [hostile.encoded(photo, quality=90) for photo in photographs()]
    images = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
    with torch.no_grad():
        image = model.eval().encode_image(torch.stack([preprocess(i) for i in images]))
        text = model.encode_text(tokenizer(CAPTIONS), normalize=True)
    image = torch.nn.functional.normalize(image, dim=-1)
    expected = image @ text.T
    for fast, tolerance in ((False, 1e-4), (True, 3e-3)):
        decode = ImageDecoder(estimator.preprocessing, fast=fast)
        found = estimator.encode_image(torch.stack([decode(data).pixels for data in files]))
        cosines = found @ estimator.encode_text(CAPTIONS).T
        assert (cosines - expected).abs().max() < tolerance
    assert estimator.trims_text == (name in TRIMS)
    assert estimator.scale == pytest.approx(float(model.logit_scale.exp()))


def test_embeddings_do_not_depend_on_the_batch(architecture):
    name, folder = architecture
    # The pooling of timm's towers rounds with the batch; the others must not differ in one bit.
    tolerance = 1e-6 if name == "siglip" else 0.0
    estimator = Estimator.load(str(folder), precision="fp32", device="cpu")
    height, width = estimator.image_size
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, 3, height, width), dtype=torch.uint8, generator=generator)
    captions = [f"{'very ' * (number % 9)}big dog {number % 25}" for number in range(60)]
    image, text = estimator.encode_image(pixels), estimator.encode_text(captions)
    for size in (1, 7, 16, 33):
        again = torch.cat([estimator.encode_image(part) for part in pixels.split(size)[:4]])
        assert (again - image[: len(again)]).abs().max() <= tolerance
        assert torch.equal(estimator.encode_text(captions, size), text)
    assert torch.equal(estimator.encode_text(captions[7:8])[0], text[7])


def test_random_tokens_are_encoded_as_open_clip_does(architecture):
    """Whatever the tower does with them: ids after the one it pools at may be left out."""
    _, folder = architecture
    estimator = Estimator.load(str(folder), precision="fp32", device="cpu")
    generator = torch.Generator().manual_seed(0)
    size = (40, estimator.context_length)
    tokens = torch.randint(0, estimator.vocab_size, size, generator=generator)
    with torch.no_grad():
        expected = estimator.model.encode_text(tokens, normalize=True)
    assert (estimator.encode_tokens(tokens) - expected).abs().max() < 1e-5
    assert torch.equal(estimator.encode_tokens(tokens), estimator.encode_tokens(tokens))
    assert len(estimator.encode_tokens(tokens[:0])) == 0


def test_captions_are_cut_beyond_the_context_or_if_nobody_can_count(demo_estimator):
    context = demo_estimator.context_length
    cut = demo_estimator.cut([None, 3, context - 1, context, context + 1])
    assert cut == {"captions_cut": 2, "context_length": context}


def test_no_captions(demo_estimator):
    assert demo_estimator.encode_text([]).shape == (0, 128)


def test_bf16_is_close_to_fp32(demo_estimator):
    estimator = Estimator.load("demo", precision="bf16", device="cpu")
    pixels = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8)
    difference = estimator.encode_image(pixels) - demo_estimator.encode_image(pixels)
    assert 0 < difference.norm(dim=1).max() < 0.05
    assert estimator.identity.fingerprint == demo_estimator.identity.fingerprint


def test_buffers_count_for_the_fingerprint_of_weights():
    """A model with other statistics of BatchNorm gives other embeddings."""
    model = torch.nn.BatchNorm1d(3)
    before = weights_fingerprint(model)
    model.running_mean += 1
    assert weights_fingerprint(model) != before


def test_a_bare_checkpoint_finds_its_architecture(tmp_path):
    torch.manual_seed(0)
    model = open_clip.create_model("ViT-S-32-alt", pretrained=None)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "vit.pt")
    estimator = Estimator.load(str(tmp_path / "vit.pt"), precision="fp32", device="cpu")
    assert estimator.image_size == (224, 224)
    assert estimator.identity.fingerprint == weights_fingerprint(model)
    assert estimator.identity.pretrained == "vit.pt"


def test_a_residual_network_is_told_by_its_shapes_and_the_plain_activation_taken(tmp_path, caplog):
    """Of 102 million parameters only the shapes count, so the file repeats a zero."""
    with torch.device("meta"):
        shapes = open_clip.model.CLIP(**open_clip.get_model_config("RN50")).state_dict()
    state = {name: torch.zeros(()).expand(value.shape) for name, value in shapes.items()}
    torch.save({"state_dict": state}, tmp_path / "rn50.pt")
    assert (tmp_path / "rn50.pt").stat().st_size < 1_000_000
    assert matching_architectures(tmp_path / "rn50.pt") == ("RN50", "RN50-quickgelu")
    assert "fits RN50, RN50-quickgelu; taking RN50" in caplog.text


def test_a_checkpoint_beside_a_config_is_the_one_that_is_loaded(tmp_path):
    folder = write_model(tmp_path / "run", {**ARCHITECTURES["clip"]})
    weights = load_file(folder / "open_clip_model.safetensors")
    weights["logit_scale"] = torch.tensor(1.0)
    save_file(weights, folder / "epoch_5.safetensors")
    chosen = Estimator.load(str(folder / "epoch_5.safetensors"), precision="fp32", device="cpu")
    assert chosen.scale == pytest.approx(2.71828, abs=1e-4)
    assert Estimator.load(str(folder), device="cpu").scale == pytest.approx(14.2857, abs=1e-3)


@pytest.mark.parametrize(
    ("model", "pretrained"),
    [
        ("ViT-B-23", "openai"),
        ("ViT-B-32", "laion3b"),
        ("ViT-B-16", None),
        ("local-dir:/nowhere", None),
    ],
)
def test_models_that_do_not_exist(model, pretrained, refused):
    refused(Estimator.load, model, pretrained, device="cpu")


def test_a_folder_without_weights_is_not_scored_at_random(tmp_path, refused):
    folder = write_model(tmp_path, {**ARCHITECTURES["clip"]})
    (folder / "open_clip_model.safetensors").unlink()
    refused(Estimator.load, str(folder), device="cpu")


def test_weights_that_do_not_fit_are_named(tmp_path, refused):
    folder = write_model(tmp_path, {**ARCHITECTURES["clip"]})
    path = folder / "open_clip_model.safetensors"
    weights = load_file(path)
    weights["ln_final.weight"] = torch.zeros(3)
    save_file(weights, path)
    refused(Estimator.load, str(folder), device="cpu")


def test_a_file_that_is_no_checkpoint(tmp_path, refused):
    (tmp_path / "notes.pt").write_text("hello")
    refused(Estimator.load, str(tmp_path / "notes.pt"), device="cpu")


def test_pickles_are_not_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save(Evil(), tmp_path / "evil.pt")
    for names in ((str(tmp_path / "evil.pt"),), ("ViT-B-32", str(tmp_path / "evil.pt"))):
        with pytest.raises(ModelError, match="tensors alone") as caught:
            Estimator.load(*names, device="cpu")
        assert "weights_only" not in str(caught.value)  # torch's advice would run them
    assert not (tmp_path / "owned").exists()


def test_device_and_precision_are_checked(refused):
    refused(Estimator.load, "demo", device="cuda:7")
    refused(Estimator.load, "demo", device="cpu", precision="int4")
    assert resolve_precision("auto", torch.device("cpu")) in ("bf16", "fp32")
    assert resolve_precision("auto", torch.device("mps")) == "fp32"


def test_weights_that_cannot_be_fetched_say_what_to_do_offline(monkeypatch, refused):
    def refuse(*args, **kwargs):
        raise OSError("Name or service not known")

    monkeypatch.setattr("open_clip.factory.download_pretrained", refuse)
    refused(Estimator.load, device="cpu")


def test_the_checks_of_a_model_tokenize_one_at_a_time():
    demo = Estimator.load("demo")
    is_busy, overlaps = threading.Event(), []

    def tokenizer(texts):
        overlaps.append(is_busy.is_set())
        is_busy.set()
        time.sleep(0.2)
        is_busy.clear()
        return demo.tokenizer(texts)

    Estimator(demo.model, tokenizer, demo.preprocessing, precision="bf16")
    assert len(overlaps) == 3
    assert not any(overlaps)
