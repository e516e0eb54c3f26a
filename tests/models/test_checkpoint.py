"""Whatever architecture --model names, the weights of --pretrained are the ones that are loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ncclean.errors import ModelError
from ncclean.models import checkpoint
from ncclean.models.checkpoint import resolve
from ncclean.models.estimator import Estimator

DEMO = Path(checkpoint.__file__).parent / "demo"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The demo as a folder, a configuration alone, two json files, and other weights."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(DEMO, folder / "model")
    weights = load_file(DEMO / "open_clip_model.safetensors")
    torch.save(weights, folder / "model" / "epoch_1.pt")
    config = json.loads((DEMO / "open_clip_config.json").read_text())
    (folder / "bare").mkdir()
    shutil.copy(DEMO / "open_clip_config.json", folder / "bare")
    (folder / "small-demo.json").write_text(json.dumps(config["model_cfg"]))
    (folder / "whole-demo.json").write_text(json.dumps(config))
    torch.save({**weights, "logit_scale": torch.tensor(1.0)}, folder / "other.pt")
    return folder


def load(model, pretrained=None):
    return Estimator.load(str(model), pretrained and str(pretrained), device="cpu")


@pytest.mark.parametrize(
    "model",
    ["demo", "model", "local-dir:model", "model/epoch_1.pt", "model/open_clip_config.json", "bare",
     "small-demo.json", "whole-demo.json"],
)  # fmt: skip
def test_the_weights_that_are_named_are_loaded(place, monkeypatch, model):
    monkeypatch.chdir(place)
    estimator = load(model, "other.pt")
    assert estimator.scale == pytest.approx(2.71828, abs=1e-4)
    assert (estimator.identity.model, estimator.identity.pretrained) == (model, "other.pt")


def test_a_model_of_the_hub_gives_its_architecture_alone(place, monkeypatch):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download",
        lambda repo, name, **_: asked.append(name) or str(place / "bare" / name),
    )  # fmt: skip
    monkeypatch.setattr("open_clip.factory._get_hf_config", lambda *_, **__: json.loads(
        (place / "bare" / "open_clip_config.json").read_text()))  # fmt: skip
    assert load("hf-hub:a/b", place / "other.pt").scale == pytest.approx(2.71828, abs=1e-4)
    assert set(asked) == {"open_clip_config.json"}


@pytest.mark.parametrize(
    ("model", "pretrained", "says"),
    [
        ("demo", "openai", "neither a file nor a tag of demo"),
        ("model", "laion2b_s34b_b79k", "neither a file nor a tag of model"),
        ("hf-hub:a/b", "nowhere.pt", "neither a file nor a tag of hf-hub:a/b"),
        ("small-demo.json", "openai", "neither a file nor a tag"),
        ("small-demo.json", None, "add --pretrained FILE"),
        ("ViT-B-32", "model", "a folder: name the weights file in it"),
        ("ViT-B-32", "nothing", "its tags are openai"),
        ("bare", None, "no weights"),
    ],
)
def test_weights_that_cannot_be_loaded_are_refused(place, monkeypatch, model, pretrained, says):
    monkeypatch.chdir(place)
    with pytest.raises(ModelError, match=says):
        resolve(model, pretrained)


def test_the_default_weights_are_those_of_the_default_model():
    assert resolve("ViT-B-32").tag == "laion2b_s34b_b79k"
    assert resolve("ViT-B-32", "openai").pretrained == "openai"
    assert resolve("demo").tag == "bundled"


@pytest.mark.parametrize("name", ["epoch_9.pt", "pytorch_model-x.bin", "last.ckpt", "x.pth"])
def test_a_folder_with_one_weights_file_loads_it_and_says_which(place, tmp_path, caplog, name):
    folder = Path(shutil.copytree(place / "bare", tmp_path / "m"))
    shutil.copy(place / "other.pt", folder / name)
    (folder / "disncl_heads.safetensors").write_bytes(b"")  # are no weights of the model
    assert load(folder).scale == pytest.approx(2.71828, abs=1e-4)
    assert name in caplog.text


def test_of_several_weights_files_one_must_be_named(place, tmp_path, refused):
    folder = Path(shutil.copytree(place / "bare", tmp_path / "m"))
    for name in ("epoch_1.pt", "epoch_2.pt"):
        shutil.copy(place / "other.pt", folder / name)
    refused(resolve, str(folder))
    assert resolve(str(folder / "epoch_2.pt")).tag == "epoch_2.pt"
    assert resolve(str(place / "model")).checkpoint == str(
        place / "model" / "open_clip_model.safetensors"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1000.0, -1000.0])
def test_a_scale_that_is_no_number_is_refused(place, tmp_path, value, refused):
    weights = load_file(DEMO / "open_clip_model.safetensors")
    save_file({**weights, "logit_scale": torch.tensor(value)}, tmp_path / "w.safetensors")
    refused(load, "demo", tmp_path / "w.safetensors")


def test_keys_of_another_model_are_named(place, tmp_path, refused):
    weights = load_file(DEMO / "open_clip_model.safetensors")
    torch.save({k.replace("visual", "vision"): v for k, v in weights.items()}, tmp_path / "w.pt")
    refused(load, "demo", tmp_path / "w.pt")
    refused(load, tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("setting", "value", "rows", "says"),
    [
        ("context_length", 64, None, r"64 tokens .*trained on 77"),
        ("vocab_size", 1000, None, r"token_embedding\.weight is \(49408, 128\)"),
        ("vocab_size", 1000, 1000, r"vocab_size of 1,000, .*49,408"),
    ],
)
def test_lengths_that_disagree_are_named(tmp_path, setting, value, rows, says):
    """Of the configuration with the weights, or of both with the tokenizer."""
    folder = Path(shutil.copytree(DEMO, tmp_path / "m"))
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"][setting] = value
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    weights = load_file(folder / "open_clip_model.safetensors")
    weights["token_embedding.weight"] = weights["token_embedding.weight"][:rows].contiguous()
    save_file(weights, folder / "open_clip_model.safetensors")
    with pytest.raises(ModelError, match=says):
        load(folder)


def test_images_of_another_size_are_said(tmp_path, caplog):
    folder = Path(shutil.copytree(DEMO, tmp_path / "m"))
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["vision_cfg"]["image_size"] = 96
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    assert load(folder).image_size == (96, 96)
    assert "64 patches" in caplog.text
    assert "144" in caplog.text
