"""Towers through `torch.compile`: a graph for each shape, and few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ncclean.models.text_tower import shortened

# Texts are padded to the next of these, or to the context length. Captions of the web have about 16
# tokens.
LENGTHS = (16, 32, 64)

Tower = Callable[..., torch.Tensor]


class CompiledTowers:
    """The towers of a model, each compiled for the shapes that it is called with.

    `encode_text` has a function for each of the `lengths` in tokens.
    """

    def __init__(self, model: nn.Module, lengths: Iterable[int]) -> None:
        def compiled(tower: object) -> Tower:
            # No other mode: on an H100 cuBLAS won against what `max-autotune` tried for seconds a
            # product, and CUDA graphs fail in any but the thread that compiled
            # (pytorch/pytorch#123177), where images and captions are encoded in different ones.
            return torch.compile(tower, dynamic=False)  # type: ignore[call-overload, no-any-return]

        self.encode_image = compiled(model.encode_image)
        self.encode_text = {
            length: compiled(shortened(model, length).encode_text) for length in lengths
        }
