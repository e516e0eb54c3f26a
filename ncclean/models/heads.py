"""Small models on embeddings: DisNCL's heads, and those for columns of `score --head`.

DisNCL's f_S, f_X, g_S, g_X split CLIP features into what both modalities share and what only one of
them has. A run folder may hold them beside the model (`write_heads`). `HeadedClip` combines both
into a model with embeddings in one of the spaces, for use wherever an estimator is.

An `EmbeddingHead` is a model on image embeddings such as LAION's aesthetic predictor.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from upath import UPath

from ncclean.base.atomic import published
from ncclean.base.regular_files import why_missing
from ncclean.base.text_files import parse_json, read_text
from ncclean.errors import InputError, ModelError
from ncclean.models.open_clip_internals import model_attribute
from ncclean.models.text_tower import encode_text
from ncclean.models.weights import check_finite, write_tensors

WEIGHTS_NAME, CONFIG_NAME = "disncl_heads.safetensors", "disncl_heads.json"
# Embedding spaces: what both modalities share, what one has alone, or both with equal weight.
SPACES = ("invariant", "exclusive", "joint")


@dataclass(frozen=True, kw_only=True)
class HeadsConfig:
    """Sizes of DisNCL's heads; `temperature` divides their cosines in a softmax."""

    feature_dim: int
    hidden_dim: int = 256
    dim: int = 512
    temperature: float = 0.05


class Heads(nn.Module):
    """DisNCL's heads: four three-layer perceptrons on embeddings before normalisation."""

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

    `None` returns the model unchanged, as does `auto` without heads; with heads `auto` is
    `invariant`. Raises `ModelError` for a named space without heads.
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
    """A CLIP model that embeds in one space of DisNCL's heads, with a CLIP model's interface.

    Heads of the other spaces are omitted, so that a fingerprint of the weights identifies the
    space.
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
    """Check whether a model folder holds DisNCL heads."""
    return (folder / CONFIG_NAME).is_file() and (folder / WEIGHTS_NAME).is_file()


def write_heads(heads: Heads, folder: Path) -> None:
    """Write DisNCL heads into a model folder, each file published whole."""
    write_tensors(heads, folder / WEIGHTS_NAME)
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
    """Build a perceptron of three layers with LeakyReLU: (N, inputs) to (N, outputs)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, outputs),
    )


_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}
_LAYER = re.compile(r"(?:(.*)\.)?(weight|bias)")


@dataclass(frozen=True)
class EmbeddingHead:
    """A network that maps (n, d) image embeddings of length 1 to (n,) float32 values.

    `fingerprint` is a hash of the file's bytes.
    """

    layers: nn.Sequential
    fingerprint: str

    @classmethod
    def load(cls, path: str) -> EmbeddingHead:
        """Load a head's linear layers from a safetensors file, in the order of their names.

        Layers are `NAME.weight` (out, in) and `NAME.bias`; numbers in names are ordered as numbers.
        The file's metadata has `activation` (`none`, `relu`, `gelu`, `tanh`), which comes between
        layers and is required if there are several, and `output` (`none`, `sigmoid`). Raises
        `InputError` for an invalid file, and for one that does not end in a single value,
        `ModelError` for numbers that are not finite.
        """
        from safetensors import SafetensorError, safe_open

        file_path = Path(path)
        if not file_path.is_file():
            raise InputError(f"--head: {why_missing(path)}")
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata() or {}
        except SafetensorError as error:
            raise InputError(f"--head: {path} is not a safetensors file: {error}") from error
        check_finite(tensors, f"--head: {path}")
        return cls(
            _sequential(path, tensors, metadata).eval(),
            hashlib.blake2b(file_path.read_bytes(), digest_size=16).hexdigest(),
        )

    @property
    def dim(self) -> int:
        """The width of the embeddings that the head takes."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        return first.in_features

    @torch.inference_mode()
    def __call__(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Compute the values in float32, on the device of the embeddings."""
        values: torch.Tensor = self.layers.to(embeddings.device)(embeddings.float())
        return values[:, 0]


def _sequential(
    path: str, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> nn.Sequential:
    by_layer: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            raise InputError(f"--head: {path} has {name}, which is neither a weight nor a bias")
        by_layer.setdefault(match[1] or "", {})[match[2]] = tensor
    linear = [_linear(path, name, by_layer[name]) for name in sorted(by_layer, key=_natural)]
    if not linear:
        raise InputError(f"--head: {path} is empty")
    for before, after in itertools.pairwise(linear):
        if before.out_features != after.in_features:
            raise InputError(
                f"--head: in {path} a layer of {before.out_features} values is followed by one "
                f"that takes {after.in_features}"
            )
    if linear[-1].out_features != 1:
        raise InputError(f"--head: {path} gives {linear[-1].out_features} values; a column is one")
    activation = metadata.get("activation", "none" if len(linear) == 1 else "")
    output = metadata.get("output", "none")
    if activation not in _ACTIVATIONS:
        raise InputError(
            f"--head: the metadata of {path} does not tell the `activation` between its "
            f"{len(linear)} layers: {', '.join(_ACTIVATIONS)}"
        )
    if output not in ("none", "sigmoid"):
        raise InputError(f"--head: the `output` of {path} is none or sigmoid, got {output}")
    layers: list[nn.Module] = []
    for layer in linear:
        layers += [layer, _ACTIVATIONS[activation]()]
    layers[-1] = nn.Sigmoid() if output == "sigmoid" else nn.Identity()
    return nn.Sequential(*layers)


def _linear(path: str, name: str, tensors: dict[str, torch.Tensor]) -> nn.Linear:
    weight = tensors.get("weight")
    if weight is None or weight.ndim != 2:
        raise InputError(f"--head: {path} has no matrix {name}.weight")
    bias = tensors.get("bias")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(f"--head: in {path} the bias of {name} does not fit its weight")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort `layers.10` after `layers.9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
