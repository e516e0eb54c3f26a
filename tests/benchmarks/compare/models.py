"""The same weights for every peer, from local files: the demo model and a random ViT-B-32.

clip-retrieval takes an open_clip name and a checkpoint file, data-juicer a folder in the format of
Hugging Face. An open_clip checkpoint file carries no preprocessing, so the demo's own mean and
deviation are folded into its first layer: the file expects pixels as OpenAI's CLIP does.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from safetensors.torch import load_file, save_file
from towers import random_vit_b_32

import ncclean.models

DEMO = Path(ncclean.models.__file__).parent / "demo"
DEMO_NAME = "ncclean-demo"  # the name of its architecture for open_clip
_MERGES = 49152 - 256 - 2
_SCALE = math.log(100.0)  # with which data-juicer's score is the cosine

# open_clip's names of the weights of a layer, and Hugging Face's.
_LAYER = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
# transformers' CLIP takes the class token of an image, the demo model the mean of its patches.
_MEAN_POOLED = '''"""CLIP whose image embedding is the mean of the patches."""

from transformers.models.clip.modeling_clip import CLIPModel, CLIPVisionTransformer


class MeanPooledVision(CLIPVisionTransformer):
    def forward(self, *arguments, **options):
        output = super().forward(*arguments, **options)
        patches = self.post_layernorm(output.last_hidden_state)[:, 1:]
        output.pooler_output = patches.mean(dim=1)
        return output


class MeanPooledCLIP(CLIPModel):
    def __init__(self, config):
        super().__init__(config)
        self.vision_model = MeanPooledVision(config.vision_config)
        self.post_init()
'''


@dataclass(frozen=True)
class ModelFiles:
    """One model: as `ncclean score` takes it, for open_clip, and for Hugging Face."""

    name: str
    ncclean: tuple[str, ...]
    open_clip_name: str
    checkpoint: Path
    hugging_face: Path


def write_models(folder: Path) -> dict[str, ModelFiles]:
    """Both models in all formats; what is there already stays."""
    vit = folder / "vit-b-32.pt"
    models = {
        "demo": ModelFiles(
            "demo", ("--model", "demo"), DEMO_NAME, folder / "demo.pt", folder / "demo-hf"
        ),
        "ViT-B-32": ModelFiles(
            "ViT-B-32",
            ("--model", "ViT-B-32", "--pretrained", str(vit)),
            "ViT-B-32",
            vit,
            folder / "vit-b-32-hf",
        ),
    }
    if (folder / "done").exists():
        return models
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.loads((DEMO / "open_clip_config.json").read_text())
    weights = {
        name: value.float()
        for name, value in load_file(DEMO / "open_clip_model.safetensors").items()
    }
    (folder / f"{DEMO_NAME}.json").write_text(json.dumps(settings["model_cfg"]))
    preprocessing = settings["preprocess_cfg"]
    torch.save(_normalisation_folded(weights, preprocessing), models["demo"].checkpoint)
    _write_hugging_face(
        models["demo"].hugging_face, weights, settings["model_cfg"], preprocessing, True
    )
    random = random_vit_b_32().model.state_dict()
    torch.save(random, vit)
    _write_hugging_face(
        models["ViT-B-32"].hugging_face,
        random,
        open_clip.get_model_config("ViT-B-32"),
        {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD},
        False,
    )
    (folder / "done").touch()
    return models


def _normalisation_folded(
    weights: Mapping[str, torch.Tensor], preprocessing: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Weights for pixels normalised as OpenAI's: the shift of a patch goes to its position."""
    mean, deviation = (torch.tensor(preprocessing[name]) for name in ("mean", "std"))
    openai_mean = torch.tensor(open_clip.OPENAI_DATASET_MEAN)
    openai_deviation = torch.tensor(open_clip.OPENAI_DATASET_STD)
    kernel = weights["visual.conv1.weight"]  # (width, 3, patch, patch)
    shift = ((openai_mean - mean) / deviation)[:, None, None] * kernel
    positions = weights["visual.positional_embedding"].clone()
    positions[1:] += shift.sum(dim=(1, 2, 3))
    return {
        **weights,
        "visual.conv1.weight": kernel * (openai_deviation / deviation)[:, None, None],
        "visual.positional_embedding": positions,
    }


def _write_hugging_face(
    folder: Path,
    weights: Mapping[str, torch.Tensor],
    architecture: Mapping[str, Any],
    preprocessing: Mapping[str, Any],
    mean_pooled: bool,
) -> None:
    folder.mkdir(exist_ok=True)
    vision, text = architecture["vision_cfg"], architecture["text_cfg"]
    shared = {"hidden_act": "gelu", "projection_dim": architecture["embed_dim"]}
    config: dict[str, Any] = {
        "model_type": "clip",
        "architectures": ["MeanPooledCLIP" if mean_pooled else "CLIPModel"],
        "projection_dim": architecture["embed_dim"],
        "text_config": {
            **shared,
            "hidden_size": text["width"],
            "intermediate_size": 4 * text["width"],
            "num_attention_heads": text["heads"],
            "num_hidden_layers": text["layers"],
            "max_position_embeddings": text["context_length"],
            "vocab_size": text["vocab_size"],
            "bos_token_id": 49406,
            "eos_token_id": 49407,
        },
        "vision_config": {
            **shared,
            "hidden_size": vision["width"],
            "intermediate_size": 4 * vision["width"],
            "num_attention_heads": vision["width"] // vision.get("head_width", 64),
            "num_hidden_layers": vision["layers"],
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
        },
    }
    if mean_pooled:
        config["auto_map"] = {"AutoModel": "mean_pooled.MeanPooledCLIP"}
        (folder / "mean_pooled.py").write_text(_MEAN_POOLED)
    _write_json(folder / "config.json", config)
    side = vision["image_size"]
    _write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "CLIPProcessor",
            "size": {"shortest_edge": side},
            "crop_size": {"height": side, "width": side},
            "image_mean": list(preprocessing["mean"]),
            "image_std": list(preprocessing["std"]),
            "resample": 3,
        },
    )
    _write_tokenizer(folder)
    save_file(_hugging_face_names(weights), folder / "model.safetensors", {"format": "pt"})


def _hugging_face_names(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    named = {
        "logit_scale": torch.tensor(_SCALE),
        "text_projection.weight": weights["text_projection"].T,
        "visual_projection.weight": weights["visual.proj"].T,
        "text_model.embeddings.token_embedding.weight": weights["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": weights["positional_embedding"],
        "vision_model.embeddings.class_embedding": weights["visual.class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": weights["visual.conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": weights["visual.positional_embedding"],
    }
    for ours, theirs in (
        ("ln_final", "text_model.final_layer_norm"),
        ("visual.ln_pre", "vision_model.pre_layrnorm"),
        ("visual.ln_post", "vision_model.post_layernorm"),
    ):
        for part in ("weight", "bias"):
            named[f"{theirs}.{part}"] = weights[f"{ours}.{part}"]
    for name, value in weights.items():
        tower, found, rest = name.partition("transformer.resblocks.")
        if not found:
            continue
        number, _, rest = rest.partition(".")
        layer = f"{'vision' if tower else 'text'}_model.encoder.layers.{number}"
        module, _, part = rest.rpartition(".")
        if module == "attn":  # in_proj_weight, in_proj_bias: queries, keys and values in one
            kind = part.removeprefix("in_proj_")
            for projection, third in zip("qkv", value.chunk(3), strict=True):
                named[f"{layer}.self_attn.{projection}_proj.{kind}"] = third
        else:
            named[f"{layer}.{_LAYER[module]}.{part}"] = value
    return {name: value.float().contiguous().clone() for name, value in named.items()}


def _write_tokenizer(folder: Path) -> None:
    """CLIP's byte pairs, from open_clip's copy of them."""
    packed = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.decompress(packed.read_bytes()).decode().split("\n")
    merges = lines[1 : 1 + _MERGES]
    letters = list(open_clip.tokenizer.bytes_to_unicode().values())
    words = [*letters, *(f"{letter}</w>" for letter in letters)]
    words += ["".join(merge.split()) for merge in merges]
    words += ["<|startoftext|>", "<|endoftext|>"]
    _write_json(folder / "vocab.json", {word: number for number, word in enumerate(words)})
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}
    special |= {"unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, **special},
    )


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content))
