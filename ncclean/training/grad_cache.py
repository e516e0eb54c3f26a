"""Gradients of a contrastive loss over a batch that does not fit: GradCache.

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup". The
loss needs all embeddings at once, but only the embeddings: encode the pieces of the batch without
keeping activations, take the loss and its gradient with respect to the embeddings, then encode
each piece again and push its share of that gradient through. The result is the gradient of the
whole batch, not the mean of smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

from ncclean.training.objectives.base import Embeddings, Terms

Piece = TypeVar("Piece")


def backward_in_pieces(
    pieces: Sequence[Piece],
    encode: Callable[[Piece], Embeddings],
    terms: Callable[[Embeddings], Terms],
    scale_loss: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
    last_pass: AbstractContextManager[None] | None = None,
) -> Terms:
    """Backpropagate a loss over a batch that is encoded in pieces; returns the detached terms.

    `encode` gives named (b, d) embeddings of a piece; `terms` takes them joined to (B, d). With one
    piece nothing is encoded twice. `scale_loss` is that of a gradient scaler. The last backward
    pass, which completes the gradients of the encoders, runs within `last_pass`.
    """
    last_pass = last_pass or nullcontext()
    if len(pieces) == 1:
        losses = terms(encode(pieces[0]))
        with last_pass:
            scale_loss(total(losses)).backward()
        return {name: value.detach() for name, value in losses.items()}
    states, encoded = [], []
    with torch.no_grad():
        for piece in pieces:
            states.append(_RandomState())
            encoded.append(encode(piece))
    whole = {
        name: torch.cat([embeddings[name] for embeddings in encoded]).requires_grad_(True)
        for name in encoded[0]
    }
    losses = terms(whole)
    scale_loss(total(losses)).backward()
    start = 0
    for number, (piece, state, embeddings) in enumerate(zip(pieces, states, encoded, strict=True)):
        rows = len(next(iter(embeddings.values())))
        with state:  # dropout must be the same in both passes
            again = encode(piece)
        surrogate = [
            (again[name] * gradient[start : start + rows]).sum()
            for name, embedding in whole.items()
            if (gradient := embedding.grad) is not None and again[name].requires_grad
        ]
        with last_pass if number == len(pieces) - 1 else nullcontext():
            if surrogate:
                torch.stack(surrogate).sum().backward()
        start += rows
    return {name: value.detach() for name, value in losses.items()}


def total(terms: Terms) -> torch.Tensor:
    """Sum the named terms of a loss."""
    return torch.stack(list(terms.values())).sum()


class _RandomState:
    """The state of torch's generators at construction, restored within the context."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def __enter__(self) -> None:
        self._after = torch.get_rng_state()
        self._gpu_after = torch.cuda.get_rng_state() if self._gpu is not None else None
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu)

    def __exit__(self, *exc: object) -> None:
        torch.set_rng_state(self._after)
        if self._gpu_after is not None:
            torch.cuda.set_rng_state(self._gpu_after)
