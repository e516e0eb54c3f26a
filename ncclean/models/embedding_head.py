"""A small model on image embeddings, such as LAION's aesthetic predictor: `score --head`."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ncclean.base.regular_files import why_missing
from ncclean.errors import InputError
from ncclean.models.weights import check_finite

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}
_LAYER = re.compile(r"(?:(.*)\.)?(weight|bias)")


@dataclass(frozen=True)
class EmbeddingHead:
    """(n, d) image embeddings of length 1 -> (n,) float32 values.

    `fingerprint` is a hash of the file's bytes.
    """

    layers: nn.Sequential
    fingerprint: str

    @classmethod
    def load(cls, path: str) -> EmbeddingHead:
        """Load a head's linear layers from a safetensors file, in the order of their names.

        Layers are `NAME.weight` (out, in) and `NAME.bias`; numbers in names are ordered as numbers.
        The file's metadata has `activation` (`none`, `relu`, `gelu`, `tanh`), which comes between
        layers and must be there if there are several, and `output` (`none`, `sigmoid`). Raises
        `InputError` for another file, and for one that does not end in a single value, `ModelError`
        for numbers that are not finite.
        """
        from safetensors import SafetensorError, safe_open

        place = Path(path)
        if not place.is_file():
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
            hashlib.blake2b(place.read_bytes(), digest_size=16).hexdigest(),
        )

    @property
    def dim(self) -> int:
        """Width of the embeddings that the head takes."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        return first.in_features

    @torch.inference_mode()
    def __call__(self, embeddings: torch.Tensor) -> torch.Tensor:
        """The values, computed in float32 where the embeddings are."""
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
    """`layers.10` after `layers.9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
