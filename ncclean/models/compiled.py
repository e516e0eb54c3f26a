"""Towers through `torch.compile`: a graph for each shape, and few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ncclean.models.text_tower import shortened

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
            length: compiled(shortened(model, length).encode_text) for length in lengths
        }
