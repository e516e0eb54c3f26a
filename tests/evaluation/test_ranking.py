"""Ranks, prompt ensembles, accuracies and recall by hand, and whatever the chunks."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip import build_zero_shot_classifier
from open_clip_train.train import get_clip_metrics

from ncclean.evaluation import ranking
from ncclean.evaluation.ranking import (
    class_depth,
    classifier_weights,
    fold_recall,
    hit_depth,
    recall_at_k,
    retrieval_depths,
)


def test_depths_by_hand():
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    gallery = torch.tensor([[0.9, 0.0], [0.5, 0.2], [0.0, 0.8]])
    # Inner products: (.9, .5, 0), (0, .2, .8), (.9, .7, .8).
    own = torch.tensor([1, 2, 1])
    assert hit_depth(query, gallery, own, torch.arange(3), deepest=3).tolist() == [1, 0, 2]
    assert hit_depth(query, gallery, own, torch.arange(3), deepest=2).tolist() == [1, 0, 2]
    assert hit_depth(query, gallery, own, torch.arange(3), deepest=1).tolist() == [1, 0, 1]


def full_matrix(query, gallery, query_group, gallery_group, deepest):
    """Position of the first right one in the sorted row, one query at a time."""
    depths = []
    for row, group in zip(query @ gallery.T, query_group, strict=True):
        order = row.argsort(descending=True)
        place = (gallery_group[order] == group).nonzero()[:, 0]
        depths.append(min(int(place[0]), deepest) if len(place) else deepest)
    return depths


@settings(max_examples=30, deadline=None)
@given(
    queries=st.integers(1, 40),
    gallery=st.integers(1, 40),
    deepest=st.integers(1, 12),
    chunk=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
def test_chunks_give_what_the_full_matrix_gives(queries, gallery, deepest, chunk, seed):
    generator = torch.Generator().manual_seed(seed)
    q, g = (
        F.normalize(torch.randn(n, 6, generator=generator, dtype=torch.float64), dim=1)
        for n in (queries, gallery)
    )
    groups = [torch.randint(0, 5, (n,), generator=generator) for n in (queries, gallery)]
    depths = hit_depth(q, g, *groups, deepest, chunk)
    assert depths.tolist() == full_matrix(q, g, *groups, deepest)


def test_a_large_gallery_makes_chunks_smaller(monkeypatch):
    monkeypatch.setattr(ranking, "_MOST_SIMILARITIES", 20)
    query = torch.eye(10)
    assert hit_depth(query, query, torch.arange(10), torch.arange(10), 3).tolist() == [0] * 10


def test_equal_embeddings_are_at_chance():
    same = torch.ones(100, 4) / 2
    depth = hit_depth(same, same, torch.arange(100), torch.arange(100), deepest=10)
    assert int((depth < 10).sum()) == 10


PROMPTS = {"a cat": [1.0, 0.0], "the cat": [0.0, 1.0], "a dog": [0.6, 0.8], "the dog": [0.6, 0.8]}


def encode(prompts):
    return torch.tensor([PROMPTS[prompt] for prompt in prompts])


@pytest.mark.parametrize("at_a_time", [1, 2, 4096])
def test_weights_are_the_normalised_mean_of_the_prompts(monkeypatch, at_a_time):
    monkeypatch.setattr(ranking, "_PROMPTS_AT_A_TIME", at_a_time)
    weights = classifier_weights(encode, ["cat", "dog"], ["a {c}", "the {c}"])
    torch.testing.assert_close(weights, torch.tensor([[0.5**0.5, 0.5**0.5], [0.6, 0.8]]))


class FixedModel:
    """A text tower with one fixed embedding for each token."""

    table = F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=1)

    def encode_text(self, tokens, normalize):
        return self.table[tokens]


def test_weights_are_those_of_open_clip():
    names, articles = ["cat", "dog", "owl"], ["a", "the"]
    prompts = [f"{article} {name}" for name in names for article in articles]

    def tokenizer(texts):
        return torch.tensor([prompts.index(text) for text in texts])

    weights = classifier_weights(
        lambda texts: FixedModel.table[tokenizer(texts)], names, ["a {c}", "the {c}"]
    )
    expected = build_zero_shot_classifier(FixedModel(), tokenizer, names, ["a {}", "the {}"])
    torch.testing.assert_close(weights, expected.T)


def test_recall_is_that_of_open_clip():
    generator = torch.Generator().manual_seed(1)
    image = F.normalize(torch.randn(50, 8, generator=generator), dim=1)
    text = F.normalize(image + torch.randn(50, 8, generator=generator), dim=1)
    expected = get_clip_metrics(image, text, 1.0)
    recall = recall_at_k(image, text, torch.arange(50))
    assert recall.pop("rsum") == pytest.approx(100 * sum(recall.values()))
    assert recall == pytest.approx({name: expected[name] for name in recall})


def test_class_depth_by_hand():
    weights = torch.eye(6)
    image = torch.tensor(
        [
            [0.9, 0.5, 0.4, 0.3, 0.2, 0.1],  # class 0, right
            [0.5, 0.9, 0.4, 0.3, 0.2, 0.1],  # class 0, second
            [0.9, 0.5, 0.4, 0.3, 0.2, 0.1],  # class 0, right
            [0.9, 0.5, 0.4, 0.3, 0.2, 0.1],  # class 5, last of six
        ]
    )
    labels = torch.tensor([0, 0, 0, 5])
    assert class_depth(image, weights, labels).tolist() == [0, 1, 0, 5]


def test_recall_by_hand():
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
