"""What a model can do on rendered scenes that no corpus of `repair.py` shares."""

from __future__ import annotations

import torch

from ncclean.data.decode import ImageDecoder
from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, retrieval_pair, zeroshot_sample
from ncclean.evaluation.ranking import class_depth, classifier_weights, recall_at_k
from ncclean.models.estimator import Estimator
from repair.corpora import PREPROCESSING


class HeldOut:
    """Retrieval among images with a caption each, and four zero-shot sets, each of `count`."""

    def __init__(self, count: int) -> None:
        decode = ImageDecoder(PREPROCESSING)
        pairs = [retrieval_pair(0, index) for index in range(count)]
        self._captions = [pair.captions[0] for pair in pairs]
        self._images = torch.stack([decode(pair.image).pixels for pair in pairs])
        self._sets = {}
        for zeroshot in ZEROSHOT_SETS:
            samples = [zeroshot_sample(zeroshot, 0, index) for index in range(count)]
            pixels = torch.stack([decode(sample.image).pixels for sample in samples])
            labels = torch.tensor([sample.label for sample in samples])
            self._sets[zeroshot.name] = (zeroshot, pixels, labels)

    def measure(self, estimator: Estimator) -> dict[str, float]:
        """Shares: mean of both R@1 (`retrieval`), top-1 of each set; `rsum` in percent."""

        def images(pixels: torch.Tensor) -> torch.Tensor:
            return torch.cat([estimator.encode_image(part) for part in pixels.split(250)])

        recalls = recall_at_k(
            images(self._images),
            estimator.encode_text(self._captions),
            torch.arange(len(self._images)),
        )
        metrics = {
            "retrieval": (recalls["image_to_text_R@1"] + recalls["text_to_image_R@1"]) / 2,
            "rsum": recalls["rsum"],
        }
        for name, (zeroshot, pixels, labels) in self._sets.items():
            weights = classifier_weights(
                estimator.encode_text, zeroshot.classnames, zeroshot.templates
            )
            depth = class_depth(images(pixels), weights, labels)
            metrics[name] = float((depth == 0).float().mean())
        return {name: round(value, 6) for name, value in metrics.items()}
