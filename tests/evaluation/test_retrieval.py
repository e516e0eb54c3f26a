"""Retrieval recall by hand, and whatever the chunks."""

import pytest
import torch
import torch.nn.functional as F

from ncclean.evaluation.retrieval import fold_recall, recall_at_k, retrieval_depths


def test_by_hand():
    """Two images, two captions each; the cosines are the entries of the captions."""
    image = torch.eye(2)
    # Image 0 with captions: .9 .1 | .8 .2; image 1: .1 .7 | .2 .6
    text = torch.tensor([[0.9, 0.1], [0.1, 0.7], [0.8, 0.2], [0.2, 0.6]])
    owner = torch.tensor([0, 0, 1, 1])
    recall = recall_at_k(image, text, owner, ks=(1, 2, 3))
    # Image 0 finds caption 0 first; image 1 has order 1, 3, 2, 0: its own caption 3 is second.
    assert recall["image_to_text_R@1"] == 0.5
    assert recall["image_to_text_R@2"] == 1.0
    # Captions 0 and 3 find their image first, 1 and 2 second.
    assert recall["text_to_image_R@1"] == 0.5
    assert recall["text_to_image_R@2"] == 1.0
    assert recall["rsum"] == pytest.approx(100 * (0.5 + 1 + 1 + 0.5 + 1 + 1))
    depths = retrieval_depths(image, text, owner)
    assert depths.image.tolist() == [0, 1]
    assert depths.caption.tolist() == [0, 1, 1, 0]


def test_identity_is_perfect_and_names_are_fixed():
    recall = recall_at_k(torch.eye(12), torch.eye(12), torch.arange(12))
    names = [f"{way}_R@{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)]
    assert list(recall) == [*names, "rsum"]
    assert recall["rsum"] == 600


def random_pairs(images, captions, seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(images, 8, generator=generator, dtype=torch.float64)
    owner = torch.arange(images).repeat_interleave(captions)
    text = image[owner] + torch.randn(len(owner), 8, generator=generator, dtype=torch.float64)
    return F.normalize(image, dim=1), F.normalize(text, dim=1), owner


def test_chunk_and_order_of_the_captions_do_not_matter():
    image, text, owner = random_pairs(57, 5)
    expected = recall_at_k(image, text, owner)
    assert recall_at_k(image, text, owner, chunk=7) == expected
    order = torch.randperm(len(text), generator=torch.Generator().manual_seed(1))
    assert recall_at_k(image, text[order], owner[order]) == expected


def test_folds_are_the_mean_of_consecutive_galleries():
    image, text, owner = random_pairs(23, 2)
    folds = fold_recall(image, text, owner, folds=2, fold_images=10)
    halves = [recall_at_k(image[s : s + 10], text[2 * s : 2 * s + 20], owner[:20]) for s in (0, 10)]
    for name in folds:
        assert folds[name] == pytest.approx((halves[0][name] + halves[1][name]) / 2)
    # A smaller gallery is easier.
    assert folds["rsum"] > recall_at_k(image, text, owner)["rsum"]
    with pytest.raises(ValueError, match="5 folds of 1000 images, but there are 23"):
        fold_recall(image, text, owner)


@pytest.mark.parametrize("owner", [[0], [0, 2], [-1, 0]])
def test_wrong_owners(owner):
    with pytest.raises(ValueError, match="text_to_image"):
        recall_at_k(torch.eye(2), torch.eye(2), torch.tensor(owner))


def test_nothing_to_retrieve():
    with pytest.raises(ValueError, match="at least one"):
        recall_at_k(torch.empty(0, 2), torch.empty(0, 2), torch.empty(0, dtype=torch.long))


def test_images_past_the_last_fold_are_left_out():
    """Also where they would be enough for further folds."""
    image, text, owner = random_pairs(33, 2)
    expected = fold_recall(image[:20], text[:40], owner[:40], folds=2, fold_images=10)
    assert fold_recall(image, text, owner, folds=2, fold_images=10) == expected
