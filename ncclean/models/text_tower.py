"""Run text towers without padding: the same embeddings from fewer tokens.

A causal text tower never looks ahead, so tokens after the end-of-text token cannot reach the pooled
feature: trimming the padding is exact, and a caption of 16 tokens costs a fifth of one padded to
77. Towers that attend to their padding (SigLIP) must keep it, see `Estimator.trims_text`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.func import functional_call

from ncclean.models.devices import float32_products, sharing_tensors
from ncclean.models.open_clip_internals import shortened_context

logger = logging.getLogger(__name__)

# Embeddings of a text must not depend on whether its batch was padded; two float32 evaluations of a
# tower may differ by this much.
_TRIM_TOLERANCE = 1e-5
# Captions are padded to a multiple of four, so that a caption's length in the tower, and with it
# the last bit of its embedding, does not depend on the others.
_LENGTHS = range(4, 1024, 4)
# Texts of compiled towers are padded to the next of these, or to the context length. Web captions
# have about 16 tokens.
COMPILED_LENGTHS = (16, 32, 64)

Tower = Callable[..., torch.Tensor]


def token_lengths(tokens: torch.Tensor) -> torch.Tensor:
    """Return the (N,) numbers of leading tokens to keep of (N, L) right-padded token ids.

    Tokenizers that pad with another id than 0 often pad with the end-of-text token itself, so one
    padding token is kept: it may be the end of the text.
    """
    padding_id = tokens[:, -1:]
    positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    content = ((tokens != padding_id) * positions).amax(dim=1)
    counts = content + (padding_id[:, 0] != 0).long()
    # A single trailing token is the end of a text that fills the context, not padding.
    is_full = tokens.shape[1] - content <= 1
    return torch.where(is_full, tokens.shape[1], counts)


def padded_lengths(tokens: torch.Tensor, lengths: Sequence[int] = _LENGTHS) -> torch.Tensor:
    """Round up token counts to the (N,) lengths at which (N, L) right-padded ids are encoded.

    L is always one of them, besides the other `lengths`, which ascend.
    """
    whole = tokens.shape[1]
    allowed = torch.tensor([*(length for length in lengths if length < whole), whole])
    return allowed[torch.bucketize(token_lengths(tokens), allowed)]


@torch.no_grad()
@float32_products(tf32=False)  # which the tolerance is for
def trimming_is_exact(
    model: nn.Module, tokenizer: Callable[[list[str]], torch.Tensor], device: torch.device
) -> bool:
    """Test whether a text tower embeds captions the same without their padding."""
    probe = ["", "a cat", "two dogs on a red sofa in the sun", "words " * 30, "word " * 200]
    tokens = tokenizer(probe).to(device)
    reference = model.encode_text(tokens, normalize=True)  # type: ignore[operator]
    try:
        for row, length in enumerate(token_lengths(tokens).tolist()):
            trimmed = encode_text(model, tokens[row : row + 1, :length])
            if (trimmed[0] - reference[row]).abs().max() > _TRIM_TOLERANCE:
                return False
    except (RuntimeError, TypeError, AttributeError, IndexError, AssertionError) as error:
        logger.info("text keeps its padding: %s", error)
        return False
    return True


def encode_text(model: nn.Module, tokens: torch.Tensor, normalize: bool = True) -> torch.Tensor:
    """Embed (N, L) token ids as (N, d), for any L up to the context length.

    open_clip's towers take only the full context; a shorter one uses the leading rows of the
    positional embedding and the mask, and the parameters otherwise unchanged, so gradients flow as
    usual. Raises whatever the tower raises if it cannot take a shorter context.
    """
    name = "text" if hasattr(model, "text") else ""
    tower = model.get_submodule(name)
    length = tokens.shape[1]
    overrides = shortened_context(tower, length)
    if not overrides:
        encoded: torch.Tensor = model.encode_text(tokens, normalize=normalize)  # type: ignore[operator]
        return encoded
    prefix = f"model.{name}." if name else "model."
    named = {prefix + key: value for key, value in overrides.items()}
    features: torch.Tensor = functional_call(_TextOf(model), named, args=(tokens, normalize))
    return features


def shortened(model: nn.Module, length: int) -> nn.Module:
    """Copy a model with a text context of `length` tokens; tensors are shared."""
    replaced = {
        id(getattr(tower, name)): tensor.detach()
        for tower in model.modules()
        if hasattr(tower, "context_length")
        for name, tensor in shortened_context(tower, length).items()
    }
    copied = sharing_tensors(model, replaced)
    for tower in copied.modules():
        if "context_length" in vars(tower):  # otherwise a property, of a tower inside
            tower.context_length = min(length, int(tower.context_length))  # type: ignore[assignment, arg-type]
    return copied


class _TextOf(nn.Module):
    """Calls a model's `encode_text`, which `functional_call` cannot name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, normalize: bool) -> torch.Tensor:
        encoded: torch.Tensor = self.model.encode_text(tokens, normalize=normalize)  # type: ignore[operator]
        return encoded


class CompiledTowers:
    """The towers of a model, each compiled for the shapes of its inputs.

    `encode_text` has a function for each of the `lengths` in tokens.
    """

    def __init__(self, model: nn.Module, lengths: Iterable[int]) -> None:
        def compiled(tower: object) -> Tower:
            # No other mode: on an H100 cuBLAS beat what `max-autotune` tried for seconds per
            # product, and CUDA graphs work only in the thread that compiled
            # (pytorch/pytorch#123177), while images and captions are encoded in different ones.
            return torch.compile(tower, dynamic=False)  # type: ignore[call-overload, no-any-return]

        self.encode_image = compiled(model.encode_image)
        self.encode_text = {
            length: compiled(shortened(model, length).encode_text) for length in lengths
        }
