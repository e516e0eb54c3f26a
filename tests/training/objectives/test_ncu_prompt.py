"""The negative prompt in open_clip's own text towers."""

import open_clip
import pytest
import torch
from open_clip.coca_model import CoCa
from open_clip.model import CLIP, CustomTextCLIP
from torch import nn

from ncclean.errors import ModelError
from ncclean.models.text_tower import token_lengths
from ncclean.training.objectives.ncu import Ncu, start_tokens
from ncclean.training.objectives.ncu_prompt import NegativePrefixes, NegativePrompt, insert_tokens
from ncclean.training.objectives.options import NcuOptions

VISION = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
TEXT = {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
END = 49407
TOWERS = {
    "parameter_projection": (CLIP, {}),
    "linear_projection": (CLIP, {"proj_bias": True}),
    "no_projection": (CLIP, {"proj_type": "none"}),
    "eos_pooling": (CLIP, {"pool_type": "eos", "eos_id": END}),
    "custom_text": (CustomTextCLIP, {}),
    "custom_text_linear": (CustomTextCLIP, {"proj_bias": True}),
    "bidirectional": (CustomTextCLIP, {"no_causal_mask": True, "pool_type": "last"}),
    "padding_masked": (CustomTextCLIP, {"no_causal_mask": True}),
    "class_token": (CoCa, {"embed_cls": True, "output_tokens": True}),
}
CAUSAL = {
    name
    for name, (kind, text) in TOWERS.items()
    if kind is not CoCa and "no_causal_mask" not in text
}
CAPTIONS = ["a dog", "", "two red cats on a green sofa", "word " * 30, "x y z w " * 4 + "v"]
tokenizer = open_clip.SimpleTokenizer(context_length=20)


@pytest.fixture(params=TOWERS)
def model(request) -> nn.Module:
    torch.manual_seed(0)
    kind, text = TOWERS[request.param]
    options = {"multimodal_cfg": {**TEXT, "mlp_ratio": 4}} if kind is CoCa else {}
    vision = {**VISION, "attentional_pool": True, "output_tokens": True, "attn_pooler_queries": 4,
              "attn_pooler_heads": 2} if kind is CoCa else VISION  # fmt: skip
    built = kind(embed_dim=32, vision_cfg=vision, text_cfg={**TEXT, **text}, **options)
    if request.param == "padding_masked":
        built.text.use_pad_mask = True
    return built.eval()


def literally(words: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """[SOT, words, caption, EOT, padding] written out row by row."""
    rows = []
    for row in tokens.tolist():
        caption = row[1 : row.index(END)]
        kept = caption[: 20 - 2 - len(words)]
        rows.append(([row[0], *words, *kept, END] + [0] * 20)[:20])
    return torch.tensor(rows)


def test_with_the_vectors_of_words_it_is_the_words(model):
    tokens, words = tokenizer(CAPTIONS), [320, 1929, 537, 786]
    prompt = NegativePrompt.for_model(model, length=4)
    tower = getattr(model, "text", model)
    with torch.no_grad():
        prompt.context.copy_(tower.token_embedding.weight[words])
        found = prompt(model, tokens)
        expected = model.encode_text(literally(words, tokens), normalize=True)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found.norm(dim=1), torch.ones(len(tokens)))


@pytest.mark.parametrize("model", sorted(CAUSAL), indirect=True)
def test_trimming_is_exact(model):
    """Of towers that see no padding; the others are never trimmed."""
    prompt = NegativePrompt.for_model(model, length=4)
    tokens = tokenizer([*CAPTIONS[:3], "one two three"])
    trimmed = tokens[:, : int(token_lengths(tokens).max())]
    assert trimmed.shape[1] < 16
    with torch.no_grad():
        assert torch.allclose(prompt(model, trimmed), prompt(model, tokens), atol=1e-6)
        shorter = prompt(model, tokens[:1, :4])
        assert torch.allclose(shorter, prompt(model, tokens)[:1], atol=1e-6)


def test_gradients_reach_the_prompt_and_the_tower(model):
    prompt = NegativePrompt.for_model(model, length=4)
    direction = torch.linspace(-1, 1, 32)
    (prompt(model, tokenizer(CAPTIONS)) @ direction).sum().backward()
    assert (prompt.context.grad.norm(dim=1) > 0).all()
    tower = getattr(model, "text", model)
    trained = [p for name, p in tower.named_parameters() if "visual" not in name]
    assert sum(p.grad is not None and bool((p.grad != 0).any()) for p in trained) > 10
    assert all(p.grad is None for p in model.visual.parameters())


def test_frozen_towers_and_frozen_prompts(model):
    prompt = NegativePrompt.for_model(model)
    model.requires_grad_(False)
    prompt(model, tokenizer(["a dog"])).sum().backward()
    assert prompt.context.grad is not None
    prompt.requires_grad_(False)
    assert not prompt(model, tokenizer(["a dog"])).requires_grad


def test_initial_vectors():
    torch.manual_seed(0)
    prompt = NegativePrompt(512, 64)
    assert prompt.context.shape == (64, 512)
    assert prompt.context.std().item() == pytest.approx(0.02, rel=0.05)
    assert [name for name, _ in prompt.named_parameters()] == ["context"]


def test_end_of_text_survives_truncation(model):
    tokens = tokenizer(CAPTIONS)
    inserted = torch.arange(1, 5).expand(len(tokens), -1)
    grown, end = insert_tokens(model, tokens, inserted)
    assert grown.tolist() == literally([1, 2, 3, 4], tokens).tolist()
    assert end.tolist() == [row.index(END) for row in grown.tolist()]


def test_without_a_start_token():
    """SigLIP's tokenizer starts with the caption, and pads with its end of text, here 1."""
    model = nn.Module()
    model.context_length, model.text_pool_type = 6, "last"
    tokens = torch.tensor([[5, 6, 1, 1, 1, 1], [5, 6, 7, 8, 9, 1]])
    grown, end = insert_tokens(model, tokens, torch.full((2, 2), 3), start=0)
    assert grown.tolist() == [[3, 3, 5, 6, 1, 1], [3, 3, 5, 6, 7, 1]]
    assert end.tolist() == [4, 5]


def test_the_tokenizer_tells_whether_there_is_a_start_token(model):
    def bare(captions):
        return torch.tensor([[ord(letter) for letter in caption[:5]] for caption in captions])

    assert start_tokens(tokenizer) == 1
    assert start_tokens(bare) == 0
    for given, start in ((tokenizer, 1), (bare, 0), (None, 1)):
        made = Ncu(NcuOptions(), tokenizer=given)
        assert made.modules(model)["prompt"].start == start


def test_prompts_must_fit(model, refused):
    refused(NegativePrompt.for_model, model, length=18)
    assert NegativePrompt.for_model(model, length=17)(model, tokenizer(["a dog"])).isfinite().all()
    refused(NegativePrompt.for_model, model, length=0)


class HFTextEncoder(nn.Module):
    """What matters of open_clip's class of that name: no tokens of its own to embed."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Identity()
        self.context_length = 20


def test_hugging_face_towers_are_refused(refused):
    model = nn.Module()
    model.text = HFTextEncoder()
    refused(NegativePrompt.for_model, model)
    with pytest.raises(ModelError, match="HFTextEncoder"):
        NegativePrompt(32)(model, tokenizer(["a dog"]))


def test_prefixes_are_the_words_themselves(model):
    prefixes = NegativePrefixes.for_model(model, tokenizer)
    tokens = tokenizer(CAPTIONS)
    found = prefixes(model, tokens)
    assert not list(prefixes.parameters())
    chosen = [("the image has no ", "this picture lacks ")[int(row.sum()) % 2] for row in tokens]
    assert len(set(chosen)) == 2
    spelled = tokenizer(
        [prefix + caption for prefix, caption in zip(chosen, CAPTIONS, strict=True)]
    )
    assert torch.allclose(found, model.encode_text(spelled, normalize=True), atol=1e-6)
    found.sum().backward()
    alone = torch.cat([prefixes(model, row[None]) for row in tokens])
    assert torch.allclose(alone, found, atol=1e-6)
