"""The metrics of a table of outcomes are those of the embeddings it came from."""

import pytest
import torch
import torch.nn.functional as F

from ncclean.errors import InputError
from ncclean.evaluation.embedding import EmbeddedClasses, EmbeddedPairs
from ncclean.evaluation.outcomes import (
    LINEAR_PROBE,
    RETRIEVAL,
    ZEROSHOT,
    aligned,
    classification_outcomes,
    metrics_of,
    retrieval_outcomes,
)
from ncclean.evaluation.retrieval import recall_at_k, retrieval_depths
from ncclean.evaluation.zeroshot import class_depth, zeroshot_accuracy


def values(task, table, classes=None):
    return {metric.name: metric.value()[0] for metric in metrics_of(task, table, classes)}


def pairs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = F.normalize(torch.randn(40, 6, generator=generator), dim=1)
    owner = torch.arange(40).repeat_interleave(torch.arange(40) % 3 + 1)
    text = F.normalize(image[owner] + torch.randn(len(owner), 6, generator=generator), dim=1)
    found = EmbeddedPairs([f"0/{n}" for n in range(40)], image, text, owner, {})
    return found, retrieval_depths(image, text, owner)


def test_retrieval():
    found, depths = pairs()
    table = retrieval_outcomes(found, depths)
    expected = recall_at_k(found.image, found.text, found.text_to_image)
    measured = values(RETRIEVAL, table)
    for k in (1, 5, 10):
        # Images are retrieved by captions: clip_benchmark names what is found.
        image, text = (measured[f"{name}_retrieval_recall@{k}"] for name in ("image", "text"))
        assert image == pytest.approx(expected[f"text_to_image_R@{k}"])
        assert text == pytest.approx(expected[f"image_to_text_R@{k}"])
    assert measured["rsum"] == pytest.approx(expected["rsum"])
    captions = table.filter(table.column("query").to_numpy() == "caption")
    assert captions.column("number").to_pylist()[:6] == [0, 0, 1, 0, 1, 2]


def classes(count=30, of=6):
    generator = torch.Generator().manual_seed(1)
    image = F.normalize(torch.randn(count, 4, generator=generator), dim=1)
    weights = F.normalize(torch.randn(of, 4, generator=generator), dim=1)
    labels = torch.randint(0, of, (count,), generator=generator)
    found = EmbeddedClasses([f"0/{n}" for n in range(count)], image, labels, {})
    return found, weights


def test_classification():
    found, weights = classes()
    depth = class_depth(found.image, weights, found.labels).numpy()
    table = classification_outcomes(found, depth)
    expected = zeroshot_accuracy(found.image, weights, found.labels)
    assert values(ZEROSHOT, table, 6) == pytest.approx(expected)
    assert list(values(LINEAR_PROBE, table, 4)) == ["lp_acc1", "lp_mean_per_class_recall"]


def test_alignment():
    found, depths = pairs()
    table = retrieval_outcomes(found, depths)
    shuffled = table.take(torch.randperm(table.num_rows).tolist())
    a, b = aligned(table, shuffled)
    assert a.equals(b)
    with pytest.raises(InputError, match="on different samples"):
        aligned(table, table.slice(1))
