"""Preprocessing goes with the weights: all released ones as files, and what states nothing."""

import dataclasses
import json

import open_clip
import pytest
import torch
from open_clip.pretrained import get_pretrained_cfg

from ncclean.errors import ModelError
from ncclean.models.building import build
from ncclean.models.checkpoint import ModelSource, resolve
from ncclean.models.estimator import Estimator
from ncclean.models.preprocessing import (
    OPENAI,
    as_config,
    choose_preprocessing,
    describe,
    preprocessing_of,
)
from ncclean.models.request import write_model as save
from tests.conftest import write_model
from tests.models.test_estimator import ARCHITECTURES

TAGS = [
    (model, tag)
    for model, tag in open_clip.list_pretrained()
    if "mean" in get_pretrained_cfg(model, tag)  # those of audio models have none
]
SIGLIP = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
DISAGREE = {"ViT-L-14", "ViT-H-14", "ViT-H-14-quickgelu"}


def stated(model, tag):
    config = get_pretrained_cfg(model, tag)
    return as_config(preprocessing_of({name: config[name] for name in OPENAI}, tag))


def chosen_for(model, weights, preprocess=None):
    """What images are preprocessed with, before any weight is read."""
    source = resolve(model, str(weights))
    config = open_clip.get_model_config(model)
    chosen = choose_preprocessing(source, config, {}, preprocess)
    return as_config(preprocessing_of(chosen, model))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.pt"
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(("model", "tag"), TAGS)
def test_released_weights_in_a_file_are_preprocessed_as_they_state(model, tag, weights):
    if model in DISAGREE:
        with pytest.raises(ModelError, match=rf"{weights.name} .*--preprocess"):
            chosen_for(model, weights)
    else:
        assert chosen_for(model, weights) == stated(model, tag)
    assert chosen_for(model, weights, tag) == stated(model, tag)
    assert chosen_for(model, weights, f"{model}/{tag}") == stated(model, tag)


def test_the_default_is_open_clips():
    defaults = dataclasses.asdict(open_clip.transform.PreprocessCfg())
    assert {name: defaults[name] for name in OPENAI} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in OPENAI.items()
    }
    assert as_config(preprocessing_of({}, "m")) == OPENAI


@pytest.mark.parametrize(
    ("stated", "taken"), [("bilinear", "bilinear"), ("bicubic", "bicubic"), ("random", "bicubic")]
)
def test_the_stated_interpolation_is_taken(stated, taken):
    assert preprocessing_of({"interpolation": stated}, "m").interpolation == taken


def test_an_architecture_without_released_weights_says_what_it_takes(weights, caplog):
    assert chosen_for("ViT-S-32", weights) == OPENAI
    assert "ViT-S-32" in caplog.text
    assert "--preprocess" in caplog.text
    assert chosen_for("ViT-S-32", weights, "ViT-B-16-SigLIP/webli") == SIGLIP
    assert chosen_for("ViT-S-32", weights, "webli") == SIGLIP  # all that have the tag agree


def test_what_is_not_the_default_is_said(weights, caplog):
    chosen_for("ViT-B-32", weights)
    assert not caplog.records
    chosen_for("ViT-B-16-SigLIP", weights)
    assert "squash" in caplog.text


@pytest.mark.parametrize(
    ("tag", "says"),
    [("webly", "did you mean webli"), ("datacomp1b", "different things"), ("a/b", "no released")],
)
def test_a_tag_that_tells_nothing_is_refused(weights, tag, says):
    with pytest.raises(ModelError, match=says):
        chosen_for("ViT-S-32", weights, tag)


def test_candidates_of_a_bare_file_must_agree(weights, refused):
    source = ModelSource("ViT-B-32", None, "w.pt", "w.pt", "w.pt", ("ViT-B-32", "ViT-B-16-SigLIP"))
    refused(choose_preprocessing, source, {}, {}, None)


@pytest.mark.parametrize("form", ["folder", "json"])
@pytest.mark.parametrize("states", [True, False])
def test_a_configuration_keeps_what_it_states(tmp_path, form, states):
    """One that states nothing is taken for the released architecture that it equals."""
    own = {**SIGLIP, "mean": [0.1, 0.2, 0.3]}
    config = {"model_cfg": open_clip.get_model_config("ViT-B-16-SigLIP")}
    config |= {"preprocess_cfg": own} if states else {}
    (tmp_path / "w.pt").write_bytes(b"")
    path = tmp_path / ("open_clip_config.json" if form == "folder" else f"of-{states}.json")
    path.write_text(json.dumps(config))
    model = tmp_path if form == "folder" else path
    source = resolve(str(model), str(tmp_path / "w.pt"))
    chosen = choose_preprocessing(
        source, config["model_cfg"], config.get("preprocess_cfg", {}), None
    )
    assert as_config(preprocessing_of(chosen, "m")) == (own if states else SIGLIP)


def test_random_weights_ask_for_nothing():
    source = resolve("ViT-L-14", is_random=True)
    assert choose_preprocessing(source, open_clip.get_model_config("ViT-L-14"), {}, None) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": "grey"},
        {"mean": [0.5, float("nan"), 0.5]},
        {"std": [0.5, 0.5]},
        {"std": 0},
        {"std": [0.5, 0.5, -1]},
        {"interpolation": "lanczos"},
        {"resize_mode": "tile"},
    ],
)
def test_values_that_no_image_can_have_are_named(wrong):
    with pytest.raises(ModelError, match=rf"^m: .*{next(iter(wrong))}"):
        preprocessing_of(wrong, "m")


def test_the_preprocessing_is_overridden_saved_and_read_back(tmp_path):
    stated = {"mean": [0.1] * 3, "size": 224}  # which the towers know better
    folder = write_model(tmp_path / "m", {**ARCHITECTURES["clip"]}, stated)
    kept = Estimator.load(str(folder), device="cpu")
    assert kept.image_size == (48, 48)
    assert kept.preprocessing.mean == (0.1,) * 3
    changed = Estimator.load(str(folder), preprocess="ViT-B-16-SigLIP/webli", device="cpu")
    save(changed, tmp_path / "saved")
    again = Estimator.load(str(tmp_path / "saved"), device="cpu")
    assert json.loads(again.identity.preprocessing) == SIGLIP
    assert as_config(again.preprocessing) == as_config(changed.preprocessing) == SIGLIP
    assert again.image_size == kept.image_size
    assert kept.identity.preprocessing != again.identity.preprocessing


def test_the_weights_of_an_architecture_in_a_file_are_preprocessed_as_it_states(tmp_path):
    folder = write_model(tmp_path / "m", {**ARCHITECTURES["clip"]})
    path = tmp_path / "small-clip.json"
    path.write_text(json.dumps({"model_cfg": ARCHITECTURES["clip"], "preprocess_cfg": SIGLIP}))
    built = build(resolve(str(path), str(folder / "open_clip_model.safetensors")))
    assert as_config(built.preprocessing) == SIGLIP
    assert torch.isfinite(built.network.logit_scale)


def test_a_person_reads_one_line():
    assert describe(SIGLIP) == "mean 0.5, std 0.5, bicubic, squash"


def test_a_model_is_built_with_what_the_released_weights_state(tmp_path, monkeypatch, refused):
    config = {**ARCHITECTURES["clip"], "embed_dim": 24}  # of no other test in this process
    folder = write_model(tmp_path / "m", config)
    (tmp_path / "small-released.json").write_text(json.dumps(config))
    released = {"a": SIGLIP, "b": {**SIGLIP, "std": [0.4] * 3}}
    monkeypatch.setattr(
        open_clip, "list_pretrained_tags_by_model",
        lambda name: list(tags) if name == "small-released" else [],
    )  # fmt: skip
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda name, tag: released.get(tag, {}))
    names = (str(tmp_path / "small-released.json"), str(folder / "open_clip_model.safetensors"))
    tags = ["a"]
    estimator = Estimator.load(*names, device="cpu")
    assert json.loads(estimator.identity.preprocessing) == as_config(estimator.preprocessing)
    assert as_config(estimator.preprocessing) == SIGLIP
    tags = ["a", "b"]
    refused(Estimator.load, *names, device="cpu")
    assert Estimator.load(*names, preprocess="b", device="cpu").preprocessing.std == (0.4,) * 3


def test_a_bare_file_is_preprocessed_as_the_architecture_that_it_fits(tmp_path):
    """Only shapes count, so the file repeats a zero."""
    with torch.device("meta"):
        model = open_clip.create_model("ViT-L-14-CLIPA", load_weights=False, device="meta")
    state = {name: torch.zeros(()).expand(v.shape) for name, v in model.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "w.pt")
    source = resolve(str(tmp_path / "w.pt"))
    assert source.architectures == ("ViT-L-14-CLIPA",)
    chosen = choose_preprocessing(source, open_clip.get_model_config(source.name), {}, None)
    assert chosen == stated("ViT-L-14-CLIPA", "datacomp1b")
