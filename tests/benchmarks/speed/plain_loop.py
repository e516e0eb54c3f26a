"""The plain loop that `ncclean score` is compared with, as clip-retrieval runs it.

webdataset, a DataLoader with worker processes, open_clip's own transform (Pillow), captions
padded to the whole context, float32 towers. It writes nothing and computes the cosine alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import webdataset
from PIL import Image
from torch.utils.data import DataLoader
from towers import Towers, open_clip_transform

_WORKERS = 2
_IMAGES = "jpg;png;webp"


@dataclass(frozen=True)
class _Preprocess:
    """The members of a sample to tensors, in a worker process."""

    transform: Callable[[Image.Image], torch.Tensor]
    tokenizer: Callable[[list[str]], torch.Tensor]

    def __call__(self, sample: tuple[str, bytes, bytes]) -> tuple[str, torch.Tensor, torch.Tensor]:
        key, image, caption = sample
        pixels = self.transform(Image.open(io.BytesIO(image)))
        return key, pixels, self.tokenizer([caption.decode()])[0]


@torch.inference_mode()
def plain_loop(towers: Towers, shards: Sequence[Path], batch_size: int) -> dict[str, float]:
    """The cosine of every pair by its key. Takes at least as many shards as it has workers."""
    model: Any = towers.model
    pairs = (
        webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=False)
        .to_tuple("__key__", _IMAGES, "txt")
        .map(_Preprocess(open_clip_transform(towers.preprocessing), towers.tokenizer))
    )
    cosines: dict[str, float] = {}
    for keys, images, tokens in DataLoader(pairs, batch_size=batch_size, num_workers=_WORKERS):
        image = F.normalize(model.encode_image(images), dim=-1)
        text = F.normalize(model.encode_text(tokens), dim=-1)
        cosines.update(zip(keys, (image * text).sum(dim=1).tolist(), strict=True))
    return cosines
