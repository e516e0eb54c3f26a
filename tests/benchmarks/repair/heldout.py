"""What a model can do on rendered scenes that no corpus of `repair.study` shares."""

from __future__ import annotations

import torch
from corpora import encoded_images

from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, retrieval_pair, zeroshot_sample
from ncclean.evaluation.ranking import class_depth, classifier_weights, recall_at_k
from ncclean.models.estimator import Estimator


class HeldOut:
    """Retrieval among images with a caption each, and four zero-shot sets, each of `count`."""

    def __init__(self, count: int) -> None:
        self._pairs = [retrieval_pair(0, index) for index in range(count)]
        self._sets = {
            zeroshot: [zeroshot_sample(zeroshot, 0, index) for index in range(count)]
            for zeroshot in ZEROSHOT_SETS
        }

    def measure(self, model: str) -> dict[str, float]:
        """Shares: mean of both R@1 (`retrieval`), top-1 of each set; `rsum` in percent."""
        estimator = Estimator.load(model, None)
        image = encoded_images(estimator, (pair.image for pair in self._pairs))
        text = estimator.encode_text([pair.captions[0] for pair in self._pairs])
        recalls = recall_at_k(image, text, torch.arange(len(image)))
        metrics = {
            "retrieval": (recalls["image_to_text_R@1"] + recalls["text_to_image_R@1"]) / 2,
            "rsum": recalls["rsum"],
        }
        for zeroshot, samples in self._sets.items():
            weights = classifier_weights(
                estimator.encode_text, zeroshot.classnames, zeroshot.templates
            )
            labels = torch.tensor([sample.label for sample in samples])
            images = encoded_images(estimator, (sample.image for sample in samples))
            metrics[zeroshot.name] = float(
                (class_depth(images, weights, labels) == 0).float().mean()
            )
        return {name: round(value, 6) for name, value in metrics.items()}
