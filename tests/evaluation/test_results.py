"""The metrics of a table of outcomes are those of the embeddings it came from."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, balanced_accuracy_score, top_k_accuracy_score

from ncclean.errors import InputError
from ncclean.evaluation.embedding import EmbeddedClasses, EmbeddedPairs
from ncclean.evaluation.ranking import class_depth, recall_at_k, retrieval_depths
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
    embedded = EmbeddedPairs(
        keys=[f"0/{n}" for n in range(40)], image=image, text=text, text_to_image=owner, skipped={}
    )
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
        keys=[f"0/{n}" for n in range(count)],
        image=image,
        labels=labels,
        skipped={},
        sample_keys=[str(n) for n in range(count)],
    )
    return embedded, weights


def test_classification():
    embedded, weights = classes()
    depth = class_depth(embedded.image, weights, embedded.labels).numpy()
    table = classification_outcomes(embedded, depth)
    logits, labels = (embedded.image @ weights.T).numpy(), embedded.labels.numpy()
    assert values(ZEROSHOT, table, 6) == pytest.approx(
        {
            "acc1": accuracy_score(labels, logits.argmax(axis=1)),
            "acc5": top_k_accuracy_score(labels, logits, k=5, labels=range(6)),
            "mean_per_class_recall": balanced_accuracy_score(labels, logits.argmax(axis=1)),
        }
    )
    assert list(values(LINEAR_PROBE, table, 4)) == ["lp_acc1", "lp_mean_per_class_recall"]


def test_alignment():
    embedded, depths = pairs()
    table = retrieval_outcomes(embedded, depths)
    shuffled = table.take(torch.randperm(table.num_rows).tolist())
    a, b = aligned(table, shuffled)
    assert a.equals(b)
    with pytest.raises(InputError, match="on different samples"):
        aligned(table, table.slice(1))
