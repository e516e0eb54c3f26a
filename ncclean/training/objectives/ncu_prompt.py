"""NCU's negative text: a caption negated by a few vectors before it.

The learnable prompt (section 4.2 of the paper, after CoOp) turns a tokenised caption into [SOT,
vectors, caption, EOT] and runs the same text tower. Its ablation (Table 5, V1) uses words instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from ncclean.errors import InputError
from ncclean.models.open_clip_internals import (
    embed_tokens,
    encode_embedded,
    model_attribute,
    pooling,
    text_tower_of,
)
from ncclean.models.text_tower import encode_text, token_lengths
from ncclean.training.objectives.similarity import normalized

PREFIXES = ("the image has no", "this picture lacks")  # the paper's examples
_SPREAD = 0.02


class NegativePrompt(nn.Module):
    """NCU's negative prompt: `length` learnable vectors before every caption, initially N(0, 0.02).

    `start` is the number of tokens before a caption: 1 for CLIP's tokenizer, 0 for SigLIP's.
    """

    def __init__(self, width: int, length: int = 8, start: int = 1) -> None:
        super().__init__()
        if length < 1:
            raise InputError(f"the negative prompt needs at least one vector, got {length}")
        self.context = nn.Parameter(_SPREAD * torch.randn(length, width))
        self.start = start

    @classmethod
    def for_model(cls, model: nn.Module, length: int = 8, start: int = 1) -> NegativePrompt:
        """Create a negative prompt as wide as a model's tokens, on its device.

        Raises `ModelError` if the text tower takes no vectors (Hugging Face towers),
        `InputError` if the prompt leaves no room for a caption.
        """
        tower = text_tower_of(model)
        room = tower.context_length - start - 2  # one token of the caption and the end of text
        if length > room:
            raise InputError(
                f"a negative prompt of {length} vectors leaves no room for captions: the text "
                f"tower takes at most {room}"
            )
        weight = tower.token_embedding.weight
        return cls(weight.shape[1], length, start).to(weight.device)

    def forward(self, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        """Embed negated captions: (N, L) token ids to (N, d), L2-normalised.

        `tokens` are padded or trimmed as for `encode_text`. Gradients reach the prompt and the
        tower.
        """
        tower = text_tower_of(model)
        length, start = len(self.context), self.start
        # The placeholders for the vectors must be neither padding nor an end of text.
        stand_in = tokens[:, :1].expand(-1, length)
        tokens, end = insert_tokens(model, tokens, stand_in, start)
        embedded = embed_tokens(tower, tokens)
        context = self.context.to(embedded.dtype).expand(len(tokens), -1, -1)
        embedded = torch.cat([embedded[:, :start], context, embedded[:, start + length :]], dim=1)
        return normalized(encode_embedded(tower, embedded, tokens, end))


class NegativePrefixes(nn.Module):
    """Words in place of NCU's negative prompt; a caption's prefix depends only on the caption.

    Has nothing to train, and works for every text tower.
    """

    def __init__(self, prefixes: Sequence[torch.Tensor], start: int = 1) -> None:
        super().__init__()
        self.start = start
        self.count = len(prefixes)
        for index, prefix in enumerate(prefixes):
            self.register_buffer(f"prefix_{index}", prefix, persistent=False)

    @classmethod
    def for_model(
        cls,
        model: nn.Module,
        tokenizer: Callable[[list[str]], torch.Tensor],
        prefixes: Sequence[str] = PREFIXES,
        start: int = 1,
    ) -> NegativePrefixes:
        """Tokenize the negative prefixes, such as "the image has no", for a model."""
        tokens = tokenizer(list(prefixes))
        ends = _end_of_text(model, tokens).tolist()
        return cls([row[start:end] for row, end in zip(tokens, ends, strict=True)], start)

    def forward(self, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        """Embed captions after negative prefixes: (N, L) token ids to (N, d), L2-normalised."""
        # Not by position: the choice must not depend on batch size or rank.
        choice = tokens.sum(dim=1) % self.count
        encoded: torch.Tensor | None = None
        for index in range(self.count):
            rows = (choice == index).nonzero()[:, 0]
            if not len(rows):
                continue
            prefix = self.get_buffer(f"prefix_{index}").to(tokens.device)
            prefixed, _ = insert_tokens(
                model, tokens[rows], prefix.expand(len(rows), -1), self.start
            )
            embeddings = normalized(encode_text(model, prefixed, normalize=False))
            if encoded is None:
                encoded = embeddings.new_zeros(len(tokens), embeddings.shape[1])
            encoded = encoded.index_copy(0, rows, embeddings)
        assert encoded is not None, "a batch without captions"
        return encoded


def insert_tokens(
    model: nn.Module, tokens: torch.Tensor, inserted: torch.Tensor, start: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Insert (N, m) token ids after the first `start` of (N, L), and locate the ends of text.

    Rows grow by m up to the model's context length; beyond, captions lose their last words, never
    their end of text.
    """
    end, m = _end_of_text(model, tokens), inserted.shape[1]
    length = min(tokens.shape[1] + m, model_attribute(model, "context_length"))
    if length < start + m + 1:
        raise InputError(f"{m} tokens before a caption do not fit into {length}")
    grown = torch.cat([tokens[:, :start], inserted, tokens[:, start : length - m]], dim=1)
    new_end = (end + m).clamp_max(length - 1)
    end_token = tokens.gather(1, end.unsqueeze(1))
    return grown.scatter(1, new_end.unsqueeze(1), end_token), new_end


def _end_of_text(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return (N,) positions of each row's end-of-text token, found as the tower finds it."""
    kind, end_id = pooling(getattr(model, "text", model))
    if kind == "argmax":
        return tokens.argmax(dim=1)
    if kind == "eos":
        return tokens.eq(end_id).int().argmax(dim=1)
    last = token_lengths(tokens) - 1
    # A lone zero at the end of a row may be kept as if it were text.
    return last - (tokens.gather(1, last.unsqueeze(1))[:, 0] == 0).long()
