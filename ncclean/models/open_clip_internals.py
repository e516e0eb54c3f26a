"""All uses of open_clip beyond its public names, in one place.

The names of `open_clip` itself and the `encode_*` methods, `visual`, `text`, `logit_scale` and
`logit_bias` of its models are public. This module has the rest: how a text tower is built, and how
a checkpoint is read. Checked against open_clip 3.0.0, 3.3.0 and 4.2.0.dev0; pyproject.toml admits
versions below 5. tests/models/test_open_clip_internals.py names what a new version lacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast
from unittest import mock

import torch
from torch import nn

from ncclean.errors import ModelError

_NEEDED = ("token_embedding", "positional_embedding", "transformer", "ln_final")


class TextTower(Protocol):
    """The attributes of a text tower that open_clip's `CLIP` and `TextTransformer` share."""

    token_embedding: nn.Embedding
    positional_embedding: torch.Tensor
    transformer: Any
    ln_final: nn.Module
    text_projection: torch.Tensor | nn.Module | None
    attn_mask: torch.Tensor | None
    context_length: int


@contextlib.contextmanager
def checkpoints_read_by(read: Callable[[Path], dict[str, torch.Tensor]]) -> Iterator[None]:
    """Make open_clip take the tensors of each checkpoint from `read`, and convert them as usual."""

    def load_state_dict(checkpoint_path: str, **_: object) -> dict[str, torch.Tensor]:
        return read(Path(checkpoint_path))

    with mock.patch("open_clip.factory.load_state_dict", load_state_dict):
        yield


def text_tower_of(model: nn.Module) -> TextTower:
    """Return the text tower of a model, which for a plain `CLIP` is the model itself.

    Raises `ModelError` if it accepts no vectors instead of tokens (towers of Hugging Face, and
    open_clip's modern one).
    """
    tower = getattr(model, "text", model)
    if all(hasattr(tower, name) for name in _NEEDED) and pooling(tower)[0] != "none":
        return cast(TextTower, tower)
    raise ModelError(
        f"the text tower {type(tower).__name__} takes token ids only, so it cannot be given a "
        "learnable negative prompt; use a model with a CLIP or TextTransformer of open_clip's, or "
        "textual prefixes"
    )


def model_attribute(model: nn.Module, name: str, default: int | None = None) -> int:
    """Return an int such as `context_length` or `vocab_size`, of a model or of its text tower."""
    for owner in (model, getattr(model, "text", None)):
        if hasattr(owner, name):
            return int(getattr(owner, name))
    if default is None:
        raise ModelError(f"{type(model).__name__} has no {name}")
    return default


def pooling(tower: object) -> tuple[str, int]:
    """Return pooling type and end-of-text id of a text tower.

    The id is -1 if none is set: towers need it only to pool at it.
    """
    prefix = "text_" if hasattr(tower, "text_pool_type") else ""
    kind = getattr(tower, f"{prefix}pool_type", "last")
    end = getattr(tower, f"{prefix}eos_id", None)
    return kind, -1 if end is None else int(end)


def shortened_context(tower: nn.Module, length: int) -> dict[str, torch.Tensor]:
    """Return a text tower's tensors cut to a context of `length` tokens; empty if it has that."""
    positions = getattr(tower, "positional_embedding", None)
    # Towers with a class token (CoCa) have one position more than tokens.
    if positions is None or length >= getattr(tower, "context_length", len(positions)):
        return {}
    replaced = {"positional_embedding": positions[:length]}
    if (mask := getattr(tower, "attn_mask", None)) is not None:
        replaced["attn_mask"] = mask[:length, :length]
    return replaced


def embed_tokens(tower: TextTower, tokens: torch.Tensor) -> torch.Tensor:
    """Embed (N, L) token ids as (N, L, width), in the precision that the layers pass on."""
    embedded: torch.Tensor = tower.token_embedding(tokens)
    return embedded.to(tower.transformer.get_cast_dtype())


def encode_embedded(
    tower: TextTower, embedded: torch.Tensor, tokens: torch.Tensor, end: torch.Tensor
) -> torch.Tensor:
    """Run a text tower from (N, L, width) embedded tokens to (N, d).

    (N, L) `tokens` distinguish padding from text if the tower masks it; (N,) `end` is where each
    text ends.
    """
    class_token = getattr(tower, "cls_emb", None)
    if class_token is not None:
        appended = class_token.to(embedded.dtype).expand(len(embedded), 1, -1)
        embedded = torch.cat([embedded, appended], dim=1)
    length = embedded.shape[1]
    mask = tower.attn_mask[:length, :length] if tower.attn_mask is not None else None
    if class_token is not None or getattr(tower, "use_pad_mask", False):
        masked: Any = tower  # open_clip's own, for cases that only it knows
        padding = masked._build_additive_mask(tokens, length, embedded.dtype)
        mask = padding if mask is None else mask.unsqueeze(0) + padding
    positions = tower.positional_embedding[:length].to(embedded.dtype)
    features = tower.transformer(embedded + positions, attn_mask=mask)
    if class_token is not None:
        pooled = tower.ln_final(features[:, -1])
    else:
        pooled = _pooled(tower.ln_final(features), pooling(tower)[0], end)
    projection = tower.text_projection
    if isinstance(projection, nn.Module):
        pooled = projection(pooled)
    elif projection is not None:
        pooled = pooled @ projection
    return cast(torch.Tensor, pooled)


def keep_fp32_between_layers(model: nn.Module) -> None:
    """Keep a model's activations in float32 between layers with matrices of another dtype."""
    for module in model.modules():
        if hasattr(module, "get_cast_dtype"):
            module.get_cast_dtype = lambda: torch.float32  # type: ignore[assignment]


def _pooled(features: torch.Tensor, kind: str, end: torch.Tensor) -> torch.Tensor:
    """Pool (N, L, width) to (N, width)."""
    if kind == "first":
        return features[:, 0]
    if kind == "last":
        return features[:, -1]
    return features[torch.arange(len(features), device=features.device), end]
