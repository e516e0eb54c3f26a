"""The models to measure with, and the plain loop that `ncclean score` is compared with.

That is the loop of clip-retrieval: webdataset, a DataLoader with worker processes, open_clip's own
transform (Pillow), captions padded to the whole context, float32 towers. It writes nothing and
computes the cosine alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
import webdataset
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from ncclean.data.decode import Preprocessing
from ncclean.models.estimator import Estimator

OPEN_CLIP_DEFAULT = Preprocessing(
    size=(224, 224), mean=open_clip.OPENAI_DATASET_MEAN, std=open_clip.OPENAI_DATASET_STD
)


@dataclass(frozen=True)
class Towers:
    """One set of weights, for ncclean's estimator and for a loop written by hand alike."""

    name: str
    model: nn.Module
    tokenizer: Callable[[list[str]], torch.Tensor]
    preprocessing: Preprocessing

    def estimator(self, precision: str) -> Estimator:
        return Estimator(
            self.model, self.tokenizer, self.preprocessing, label=self.name, precision=precision
        )


def random_vit_b_32() -> Towers:
    """ViT-B-32 as open_clip initialises it: the speed of any checkpoint, and no download."""
    torch.manual_seed(0)
    name = "ViT-B-32"
    model = open_clip.create_model(name, pretrained=None, load_weights=False)
    return Towers(name, model, open_clip.get_tokenizer(name), OPEN_CLIP_DEFAULT)


def demo_towers(model: str) -> Towers:
    """The demo model, or another one that `ncclean score --model` takes."""
    loaded = Estimator.load(model, None, precision="fp32", device="cpu")
    return Towers("demo", loaded.model, loaded.tokenizer, loaded.preprocessing)


def open_clip_transform(spec: Preprocessing) -> Callable[[Image.Image], torch.Tensor]:
    """open_clip's own inference transform: Pillow image to normalised float32 (3, H, W)."""
    transform: Callable[[Image.Image], torch.Tensor] = open_clip.image_transform(
        spec.size,
        is_train=False,
        mean=spec.mean,
        std=spec.std,
        interpolation=spec.interpolation,
        resize_mode=spec.resize_mode,
    )
    return transform


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
