"""The metrics of a table of outcomes are those of the embeddings it came from."""

import pytest
import torch
import torch.nn.functional as F

from ncclean.errors import InputError
from ncclean.evaluation.embedding import EmbeddedClasses, EmbeddedPairs
from ncclean.evaluation.ranking import class_depth, recall_at_k, retrieval_depths, zeroshot_accuracy
from ncclean.evaluation.results import (
    LINEAR_PROBE,
    RETRIEVAL,
    ZEROSHOT,
    aligned,
    classification_outcomes,
    metrics_of,
    retrieval_outcomes,
)


def values(task, table, classes=None):
    return {metric.name: metric.value()[0] for metric in metrics_of(task, table, classes)}


def pairs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = F.normalize(torch.randn(40, 6, generator=generator), dim=1)
    owner = torch.arange(40).repeat_interleave(torch.arange(40) % 3 + 1)
    text = F.normalize(image[owner] + torch.randn(len(owner), 6, generator=generator), dim=1)
    embedded = EmbeddedPairs([f"0/{n}" for n in range(40)], image, text, owner, {})
    return embedded, retrieval_depths(image, text, owner)


def test_retrieval():
    embedded, depths = pairs()
    table = retrieval_outcomes(embedded, depths)
    expected = recall_at_k(embedded.image, embedded.text, embedded.text_to_image)
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
    embedded = EmbeddedClasses(
        [f"0/{n}" for n in range(count)], image, labels, {}, [str(n) for n in range(count)]
    )
    return embedded, weights


def test_classification():
    embedded, weights = classes()
    depth = class_depth(embedded.image, weights, embedded.labels).numpy()
    table = classification_outcomes(embedded, depth)
    expected = zeroshot_accuracy(embedded.image, weights, embedded.labels)
    assert values(ZEROSHOT, table, 6) == pytest.approx(expected)
    assert list(values(LINEAR_PROBE, table, 4)) == ["lp_acc1", "lp_mean_per_class_recall"]


def test_alignment():
    embedded, depths = pairs()
    table = retrieval_outcomes(embedded, depths)
    shuffled = table.take(torch.randperm(table.num_rows).tolist())
    a, b = aligned(table, shuffled)
    assert a.equals(b)
    with pytest.raises(InputError, match="on different samples"):
        aligned(table, table.slice(1))
