"""The models to measure with: ViT-B-32 with random weights, and the demo model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import open_clip
import torch
from PIL import Image
from torch import nn

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
