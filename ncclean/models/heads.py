"""Heads that split CLIP features into what both modalities share and what only one of them has.

DisNCL's f_S, f_X, g_S, g_X. A run folder may hold them beside the model (`write_heads`).
`HeadedClip` makes of both a model whose embeddings lie in one of the spaces, which everything that
takes an estimator can use.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from upath import UPath

from ncclean.base.atomic import published
from ncclean.base.text_files import parse_json, read_text
from ncclean.errors import InputError, ModelError
from ncclean.models.open_clip_internals import model_attribute
from ncclean.models.text_tower import encode_text
from ncclean.models.weights import check_finite

WEIGHTS_NAME, CONFIG_NAME = "disncl_heads.safetensors", "disncl_heads.json"
# Cosines in: what both modalities share, what one has alone, or both halves with equal weight.
SPACES = ("invariant", "exclusive", "joint")


@dataclass(frozen=True, kw_only=True)
class HeadsConfig:
    """Sizes of the heads; `temperature` is what their cosines are divided by in a softmax."""

    feature_dim: int
    hidden_dim: int = 256
    dim: int = 512
    temperature: float = 0.05


class Heads(nn.Module):
    """Four three-layer perceptrons on embeddings before normalisation."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.config = config
        sizes = config.feature_dim, config.hidden_dim, config.dim
        self.image_invariant = perceptron(*sizes)
        self.image_exclusive = perceptron(*sizes)
        self.text_invariant = perceptron(*sizes)
        self.text_exclusive = perceptron(*sizes)

    def image(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split (N, d) image features into (N, dim) halves, invariant V_S and exclusive V_X."""
        return self.image_invariant(features), self.image_exclusive(features)

    def text(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split (N, d) caption features into (N, dim) halves, invariant T_S and exclusive T_X."""
        return self.text_invariant(features), self.text_exclusive(features)


def headed(model: nn.Module, folder: Path | None, space: str | None) -> nn.Module:
    """Wrap a model so that it embeds in `space`, by the DisNCL heads in its folder.

    `None` leaves it as it is, and so does `auto` if there are no heads; with them it is
    `invariant`. Raises `ModelError` if a space is asked for by name and there are no heads.
    """
    if space is None or (space == "auto" and (folder is None or not has_heads(folder))):
        return model
    if space == "auto":
        space = "invariant"
    check_space(space)
    if folder is None:
        raise ModelError(f"--space {space} needs a model folder that was trained with disncl")
    return HeadedClip(model, read_heads(folder), space)


def check_space(space: str) -> None:
    """Raise `InputError` for a space other than `invariant`, `exclusive` and `joint`."""
    if space not in SPACES:
        raise InputError(f"--space takes {', '.join(SPACES)}, got {space!r}")


class HeadedClip(nn.Module):
    """A CLIP model and the heads of one space, with the interface of a CLIP model.

    Heads of the other spaces are left out, so that a fingerprint of the weights tells spaces apart.
    """

    def __init__(self, clip: nn.Module, heads: Heads, space: str) -> None:
        super().__init__()
        check_space(space)
        self.clip, self.space = clip, space
        halves = ("invariant", "exclusive") if space == "joint" else (space,)
        self.image_heads = nn.ModuleDict({p: getattr(heads, f"image_{p}") for p in halves})
        self.text_heads = nn.ModuleDict({p: getattr(heads, f"text_{p}") for p in halves})
        temperature = heads.config.temperature
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=False)

    @property
    def context_length(self) -> int:
        return model_attribute(self.clip, "context_length")

    @property
    def vocab_size(self) -> int:
        return model_attribute(self.clip, "vocab_size")

    def encode_image(self, pixels: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        """Embed images in the chosen space; embeddings are always L2-normalised."""
        return self._projected(self.clip.encode_image(pixels), self.image_heads)  # type: ignore[operator]

    def encode_text(self, tokens: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        """Embed token ids in the chosen space; rows may be shorter than the context length."""
        features = encode_text(self.clip, tokens, normalize=False)
        return self._projected(features, self.text_heads)

    def _projected(self, features: torch.Tensor, heads: nn.ModuleDict) -> torch.Tensor:
        halves = [F.normalize(head(features).float(), dim=-1) for head in heads.values()]
        return torch.cat(halves, dim=-1) / math.sqrt(len(halves))


def has_heads(folder: Path) -> bool:
    """Whether a model folder holds DisNCL heads."""
    return (folder / CONFIG_NAME).is_file() and (folder / WEIGHTS_NAME).is_file()


def write_heads(heads: Heads, folder: Path) -> None:
    """Write DisNCL heads into a model folder, each file published whole."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().clone() for name, value in heads.state_dict().items()}
    with published(UPath(folder / WEIGHTS_NAME)) as aside:
        save_file(state, aside)
        aside.chmod(0o644)  # it is written for its owner only
    with published(UPath(folder / CONFIG_NAME)) as aside:
        aside.write_text(json.dumps(dataclasses.asdict(heads.config), indent=2) + "\n")


def read_heads(folder: Path) -> Heads:
    """Load the DisNCL heads of a model folder, in float32 on the CPU. Raises `ModelError`."""
    from safetensors.torch import load_file

    if not has_heads(folder):
        raise ModelError(f"{folder} holds no {WEIGHTS_NAME}: it was not trained with disncl")
    try:
        heads = Heads(HeadsConfig(**parse_json(read_text(folder / CONFIG_NAME), CONFIG_NAME)))
        heads.load_state_dict(load_file(folder / WEIGHTS_NAME))
    except Exception as error:
        raise ModelError(f"the heads in {folder} cannot be read: {error}") from error
    check_finite(heads.state_dict(), folder / WEIGHTS_NAME)
    if not 0 < heads.config.temperature < math.inf:
        raise ModelError(
            f"{folder / CONFIG_NAME} has a temperature of {heads.config.temperature}: it must be "
            "above 0"
        )
    return heads.eval()


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build a perceptron of three layers with LeakyReLU: (N, inputs) -> (N, outputs)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, outputs),
    )
