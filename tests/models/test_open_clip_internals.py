"""What ncclean takes from inside open_clip: a version that lacks it fails here, by name."""

import ast
import types
from pathlib import Path

import open_clip
import pytest
import torch

import ncclean
from ncclean.models.open_clip_internals import (
    checkpoints_read_by,
    embed_tokens,
    encode_embedded,
    model_attribute,
    pooling,
    shortened_context,
    text_tower_of,
)
from tests.models.test_estimator import ARCHITECTURES

ATTRIBUTES = {
    "clip": ("text_pool_type",),
    "custom_text": ("pool_type", "cls_emb", "use_pad_mask", "_build_additive_mask"),
}
SHARED = (
    "token_embedding",
    "positional_embedding",
    "transformer",
    "ln_final",
    "text_projection",
    "attn_mask",
    "context_length",
    "vocab_size",
)


@pytest.fixture(params=ATTRIBUTES)
def model(request):
    config = {**ARCHITECTURES[request.param]}
    kind = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
    torch.manual_seed(0)
    return request.param, kind(**config).eval()


def lacks(owner, name):
    return f"open_clip {open_clip.__version__} has no {owner}.{name}: see open_clip_internals.py"


def test_text_towers_have_the_names_that_are_used(model):
    kind, clip = model
    tower = getattr(clip, "text", clip)
    for name in (*SHARED, *ATTRIBUTES[kind]):
        assert hasattr(tower, name), lacks(type(tower).__name__, name)
    assert hasattr(tower.transformer, "get_cast_dtype"), lacks("Transformer", "get_cast_dtype")
    assert text_tower_of(clip) is tower
    assert pooling(tower)[0] == "argmax"
    assert model_attribute(clip, "context_length") == 77
    assert shortened_context(tower, 9)["attn_mask"].shape == (9, 9)
    assert shortened_context(tower, 77) == {}


def test_open_clip_takes_checkpoints_from_the_reader(model, tmp_path):
    _, clip = model
    state = {name: torch.full_like(value, 0.5) for name, value in clip.state_dict().items()}
    asked = []
    assert hasattr(open_clip.factory, "load_state_dict"), lacks("factory", "load_state_dict")
    with checkpoints_read_by(lambda path: asked.append(path) or dict(state)):
        open_clip.load_checkpoint(clip, str(tmp_path / "nowhere.pt"))
    assert asked == [tmp_path / "nowhere.pt"]
    assert float(clip.logit_scale) == 0.5


@pytest.mark.parametrize("end", [None, 7])
def test_an_end_of_text_that_is_not_set_is_none_of_the_ids(end):
    tower = types.SimpleNamespace(pool_type="argmax", eos_id=end)
    assert pooling(tower) == ("argmax", -1 if end is None else 7)


@torch.no_grad()
def test_embedded_tokens_are_encoded_as_the_tower_does(model):
    _, clip = model
    tokens = open_clip.tokenize(["a red circle", "two dogs in the snow"])
    tower = text_tower_of(clip)
    encoded = encode_embedded(tower, embed_tokens(tower, tokens), tokens, tokens.argmax(dim=1))
    assert torch.allclose(encoded, clip.encode_text(tokens), atol=1e-5)


def test_nothing_else_reaches_into_open_clip():
    """Elsewhere only `import open_clip`, and of `open_clip.transform` what `open_clip` exports."""
    for path in Path(ncclean.__file__).parent.rglob("*.py"):
        if path.name == "open_clip_internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "open_clip"
            ):
                for alias in node.names:
                    assert hasattr(open_clip, alias.name), f"{path} imports {alias.name}"
            if isinstance(node, ast.Import):
                for alias in node.names:
                    assert not alias.name.startswith("open_clip."), f"{path} imports {alias.name}"
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "open_clip"
            ):
                assert hasattr(open_clip, node.attr), lacks("open_clip", node.attr)
                assert not node.attr.startswith("_"), f"{path} uses open_clip.{node.attr}"
