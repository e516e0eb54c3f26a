import dataclasses
import json
import math

import open_clip
import pytest
import torch
import torch.nn.functional as F

from ncclean.models.estimator import Estimator
from ncclean.models.heads import (
    CONFIG_NAME,
    HeadedClip,
    Heads,
    HeadsConfig,
    has_heads,
    read_heads,
    write_heads,
)
from ncclean.models.request import write_model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder: the bundled noisy model with heads beside it."""
    folder = tmp_path_factory.mktemp("heads") / "run"
    estimator = Estimator.load("demo-noisy", precision="fp32", device="cpu")
    write_model(estimator, folder)
    torch.manual_seed(3)
    write_heads(Heads(HeadsConfig(feature_dim=128, hidden_dim=32, dim=24)), folder)
    return folder


def joined(invariant, exclusive, space):
    """L2-normalised embeddings in a space; cosines in the joint one are means of the others."""
    halves = F.normalize(invariant, dim=-1), F.normalize(exclusive, dim=-1)
    if space == "joint":
        return torch.cat(halves, dim=-1) / math.sqrt(2)
    return halves[space == "exclusive"]


def test_survive_the_folder_which_stays_a_model_of_open_clip(run):
    heads = read_heads(run)
    torch.manual_seed(3)
    expected = Heads(HeadsConfig(feature_dim=128, hidden_dim=32, dim=24)).state_dict()
    assert all(torch.equal(heads.state_dict()[name], expected[name]) for name in expected)
    model = open_clip.create_model(f"local-dir:{run}")
    plain = Estimator.load("demo-noisy", precision="fp32", device="cpu").model
    assert torch.equal(model.visual.proj, plain.visual.proj)
    assert json.loads((run / CONFIG_NAME).read_text()) == dataclasses.asdict(heads.config)


def test_an_estimator_in_each_space(run):
    """Cosines are those of the heads on features before normalisation; fingerprints differ."""
    heads = read_heads(run)
    plain = Estimator.load(f"local-dir:{run}", precision="fp32", device="cpu")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (3, 3, 64, 64), generator=generator, dtype=torch.uint8)
    captions = ["a red star", "two blue rings on a white background", "x"]
    with torch.no_grad():
        image = plain.model.encode_image(plain.normalized(pixels))
        text = plain.model.encode_text(plain.tokenize(captions))
    fingerprints = {plain.identity.fingerprint}
    for space in ("invariant", "exclusive", "joint"):
        estimator = Estimator.load(run.as_posix(), precision="fp32", device="cpu", space=space)
        with torch.no_grad():
            expected = [joined(*halves, space) for halves in (heads.image(image), heads.text(text))]
            alone = estimator.model.encode_image(estimator.normalized(pixels))
        assert torch.allclose(alone, expected[0], atol=1e-5)  # normalised by the model itself
        assert torch.allclose(estimator.encode_image(pixels), expected[0], atol=1e-5)
        assert torch.allclose(estimator.encode_text(captions), expected[1], atol=1e-5)
        assert estimator.trims_text
        assert estimator.scale == pytest.approx(20, rel=1e-6)
        assert estimator.identity.pretrained == f"local, {space} space"
        fingerprints.add(estimator.identity.fingerprint)
    assert len(fingerprints) == 4
    auto = Estimator.load(run.as_posix(), precision="fp32", device="cpu", space="auto")
    assert auto.identity.pretrained == "local, invariant space"


def test_an_unknown_space_is_refused(run, refused):
    refused(Estimator.load, run.as_posix(), precision="fp32", device="cpu", space="outer")


def test_models_without_heads(tmp_path, refused):
    assert not has_heads(tmp_path)
    refused(read_heads, tmp_path)
    refused(Estimator.load, "demo", space="invariant", precision="fp32", device="cpu")
    auto = Estimator.load("demo", space="auto", precision="fp32", device="cpu")
    assert not isinstance(auto.model, HeadedClip)


def test_broken_heads_are_named(run, tmp_path, refused):
    for path in run.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / CONFIG_NAME).read_text())
    (tmp_path / CONFIG_NAME).write_text(json.dumps({**config, "dim": 7}))
    refused(read_heads, tmp_path)
