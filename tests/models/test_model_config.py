"""A model's configuration states an architecture; what could load code is refused unread."""

import dataclasses
import json
import os
import shutil
import sys
import types
from pathlib import Path

import open_clip
import pytest

from ncclean.errors import ModelError
from ncclean.models import checkpoint
from ncclean.models.building import build
from ncclean.models.checkpoint import resolve
from ncclean.models.heads import read_heads
from ncclean.models.model_config import check_config

DEMO = Path(checkpoint.__file__).parent / "demo"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


def change(folder, **parts):
    """Set entries of the parts of the configuration."""
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    for part, values in parts.items():
        place = config if part == "preprocess_cfg" else config["model_cfg"]
        (place if part != "top" else config["model_cfg"]).update(
            values if part == "top" else {part: {**place.get(part, {}), **values}}
        )
    path.write_text(json.dumps(config))


def refusal(model):
    with pytest.raises(ModelError) as error:
        build(resolve(str(model), None))
    return str(error.value)


@pytest.mark.parametrize("name", open_clip.list_models())
def test_the_models_of_open_clip_pass(name):
    config = open_clip.get_model_config(name)
    if "audio_cfg" in config or "genlip_cfg" in config or "genlap_cfg" in config:
        with pytest.raises(ModelError, match=r"reads sound|writes captions"):
            check_config(name)
    else:
        assert check_config(name).architecture["embed_dim"] > 0


@pytest.mark.parametrize(
    "parts",
    [
        {"text_cfg": {"tokenizer_kwargs": {"trust_remote_code": True}}},
        {"text_cfg": {"tokenizer_kwargs": {"trust_remote_code": 1, "clean": "lower"}}},
        {"text_cfg": {"tokenizer_kwargs": {"code_revision": "main"}}},
        {"text_cfg": {"tokenizer_kwargs": {"clean": {"a": 1}}}},
        {"text_cfg": {"hf_tokenizer_name": "../tok"}},
        {"text_cfg": {"hf_model_name": "/tmp/model"}},
        {"text_cfg": {"hf_model_name": "./model"}},
        {"text_cfg": {"act_kwargs": {"inplace": True}}},
        {"text_cfg": {"auto_map": {"AutoTokenizer": "tok.T"}}},
        {"vision_cfg": {"timm_model_name": "hf-hub:somebody/model"}},
        {"vision_cfg": {"timm_model_name": "local-dir:/tmp/model"}},
        {"vision_cfg": {"norm_kwargs": {"device": "meta"}}},
        {"vision_cfg": {"image_size": 1_000_000}},
        {"vision_cfg": {"layers": 10_000_000}},
        {"vision_cfg": {"layers": [[1]] * 4}},
        {"preprocess_cfg": {"size": [10**9, 10**9]}},
        {"preprocess_cfg": {"loader": "tok.py"}},
        {"top": {"text_cfg": [1]}},
        {"top": {"cast_dtype": "x"}},
        {"top": {"vision_cfg": "tok.py"}},
    ],
)
def test_settings_that_no_released_model_has_are_refused(folder, parts):
    change(folder, **parts)
    assert "open_clip_config.json" in refusal(folder)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"top": {"audio_cfg": {}}}, "reads sound"),
        ({"top": {"genlip_cfg": {}}}, "writes captions"),
        ({"text_cfg": {"tokenizer_kwargs": {"clean": "lower"}, "rope_scaling": 2}}, "ncclean"),
    ],
)
def test_a_refusal_says_what_the_model_is(folder, parts, says):
    change(folder, **parts)
    assert says in refusal(folder)


def test_what_only_a_newer_open_clip_knows_is_said(folder, monkeypatch):
    @dataclasses.dataclass
    class Older:
        context_length: int = 77
        vocab_size: int = 49408
        width: int = 512
        heads: int = 8
        layers: int = 12

    monkeypatch.setattr(open_clip, "CLIPTextCfg", Older)
    change(folder, text_cfg={"text_arch": "modern"})
    assert "text_arch" in refusal(folder)
    assert "open_clip_torch" in refusal(folder)


@pytest.mark.parametrize("key", ["embed_dim", "vision_cfg", "text_cfg"])
def test_a_configuration_that_lacks_a_part_is_said(folder, key):
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    del config["model_cfg"][key]
    path.write_text(json.dumps(config))
    assert f"has no {key}" in refusal(folder)


def test_more_parameters_than_the_weights_could_hold_are_not_built(folder):
    change(folder, vision_cfg={"width": 1 << 20, "layers": 500})
    assert "do not belong together" in refusal(folder)


def test_a_tokenizer_is_told_not_to_run_code(folder, monkeypatch):
    """Not even to ask whether to, which is what transformers does if nothing is said."""
    given = {}

    class AutoTokenizer:
        @staticmethod
        def from_pretrained(name, **options):
            given.update(options)
            raise ValueError("contains custom code which must be executed")

    transformers = types.ModuleType("transformers")
    transformers.AutoTokenizer = AutoTokenizer
    transformers.dynamic_module_utils = types.SimpleNamespace(TIME_OUT_REMOTE_CODE=15)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    change(folder, text_cfg={"hf_tokenizer_name": "somebody/tokenizer"})
    assert "is never run" in refusal(folder)
    assert not given.get("trust_remote_code")  # open_clip 4 does not hand it on
    assert transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE == 15


def test_a_model_of_the_hub_is_checked_alike(folder, monkeypatch):
    import huggingface_hub

    change(folder, text_cfg={"tokenizer_kwargs": {"trust_remote_code": True}})
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda repo, name, **_: str(folder / name)
    )
    assert "trust_remote_code" in refusal("hf-hub:somebody/model")


def test_an_architecture_in_a_file_is_checked_alike(tmp_path, refused):
    config = json.loads((DEMO / "open_clip_config.json").read_text())["model_cfg"]
    config["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
    (tmp_path / "surely-new.json").write_text(json.dumps(config))
    refused(build, resolve(str(tmp_path / "surely-new.json"), None, is_random=True))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "\xff", "1" * 5000])
def test_a_configuration_that_is_no_object_is_said(folder, text):
    (folder / "open_clip_config.json").write_text(text)
    assert "open_clip_config.json" in refusal(folder)


def test_a_configuration_without_an_end_is_not_read(folder):
    config = folder / "open_clip_config.json"
    config.unlink()
    config.symlink_to("/dev/zero")
    assert "holds no open_clip_config.json" in refusal(folder)
    config.unlink()
    with config.open("wb") as file:
        os.truncate(file.fileno(), 10 << 30)
    assert "too many" in refusal(folder)


def test_deep_json_of_heads_is_said(folder, refused):
    (folder / "disncl_heads.json").write_text("[" * 100_000)
    (folder / "disncl_heads.safetensors").write_bytes(b"")
    refused(read_heads, folder)
