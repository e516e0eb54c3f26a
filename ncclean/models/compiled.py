"""Towers through `torch.compile`: a graph for each shape, and few shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import chain

import torch
from torch import nn

from ncclean.models.open_clip_internals import shortened_context

# Texts are padded to the next of these, or to the context length. Captions of the web have about 16
# tokens.
LENGTHS = (16, 32, 64)
# CUDA graphs, which the mode without this ending has, fail in any but the thread that compiled
# (pytorch/pytorch#123177); images and captions are encoded in different threads.
_CUDA_MODE = "max-autotune-no-cudagraphs"

Tower = Callable[..., torch.Tensor]


class CompiledTowers:
    """The towers of a model, each compiled for the shapes that it is called with.

    `encode_text` has a function for each of the `lengths` in tokens.
    """

    def __init__(self, model: nn.Module, lengths: Iterable[int], device: torch.device) -> None:
        mode = _CUDA_MODE if device.type == "cuda" else None

        def compiled(tower: object) -> Tower:
            return torch.compile(tower, dynamic=False, mode=mode)  # type: ignore[call-overload, no-any-return]

        self.encode_image = compiled(model.encode_image)
        self.encode_text = {
            length: compiled(_shortened(model, length).encode_text) for length in lengths
        }


def _shortened(model: nn.Module, length: int) -> nn.Module:
    """A copy of the model whose text tower has a context of `length` tokens; tensors are shared."""
    memo: dict[int, object] = {id(t): t for t in chain(model.parameters(), model.buffers())}
    for tower in model.modules():
        if hasattr(tower, "context_length"):
            for name, tensor in shortened_context(tower, length).items():
                memo[id(getattr(tower, name))] = tensor
    shortened = copy.deepcopy(model, memo)
    for tower in shortened.modules():
        if "context_length" in vars(tower):  # else it is a property, of a tower inside
            tower.context_length = min(length, int(tower.context_length))  # type: ignore[assignment, arg-type]
    return shortened
