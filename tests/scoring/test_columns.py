"""The score columns against a plain numpy computation."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ncclean.scoring.blocks import BlockStatistics
from ncclean.scoring.clip_loss import mismatched_scores
from ncclean.scoring.columns import caption_numbers, score_pairs
from ncclean.scoring.null import Histogram
from ncclean.scoring.stats import ColumnFailures, Distributions, ShardStats


def embeddings(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = F.normalize(torch.randn(n, 16, generator=generator), dim=1)
    text = F.normalize(image + 0.3 * torch.randn(n, 16, generator=generator), dim=1)
    return image, text


def score(image, text, **options):
    defaults = {"scale": 20.0, "shard": "00000", "block_size": 64, "forget_percent": 10, "seed": 0}
    return score_pairs(image, text, **{**defaults, **options})


def test_every_block_equals_plain_numpy():
    image, text = embeddings(300)
    scores = score(image, text)
    assert sorted(np.unique(scores.columns["block"])) == list(range(5))
    for block in np.unique(scores.columns["block"]):
        members = np.flatnonzero(scores.columns["block"] == block)
        v = image[members].half().float().numpy()
        t = text[members].half().float().numpy()
        cosines = v @ t.T
        own = np.diag(cosines)
        rows = np.exp(20 * cosines) / np.exp(20 * cosines).sum(1, keepdims=True)
        columns = np.exp(20 * cosines) / np.exp(20 * cosines).sum(0, keepdims=True)
        confidence = (np.diag(rows) + np.diag(columns)) / 2
        assert scores.columns["ncu_confidence"][members] == pytest.approx(confidence, rel=1e-4)
        forget = np.zeros(len(members), dtype=bool)
        forget[
            np.argsort(scores.columns["ncu_confidence"][members], kind="stable")[
                : len(members) // 10
            ]
        ] = 1
        assert np.array_equal((scores.columns["ncu_split"] == "forget")[members], forget)
        assert np.array_equal(scores.columns["i2t_rank"][members], (cosines > own[:, None]).sum(1))
        assert np.array_equal(scores.columns["t2i_rank"][members], (cosines > own[None, :]).sum(0))
        mutual = (own >= cosines.max(1)) & (own >= cosines.max(0))
        assert np.array_equal(scores.columns["disncl_clean"][members], mutual)
        lse = np.log(np.exp(20 * cosines).sum(1)) + np.log(np.exp(20 * cosines).sum(0))
        assert scores.columns["neg_clip_loss"][members] == pytest.approx(own - lse / 40, abs=1e-5)


def test_histograms_hold_every_pair_and_every_mismatch():
    scores = score(*embeddings(300))
    sizes = np.bincount(scores.columns["block"])
    assert scores.distributions.matched.size == 300
    assert scores.distributions.mismatched.size == (sizes * (sizes - 1)).sum()
    assert scores.distributions.matched.mean == pytest.approx(
        scores.columns["similarity"].mean(), abs=1e-6
    )


def test_known_mismatches_of_neg_clip_loss_have_no_partner_of_their_own():
    """The score that image i and caption j have where neither's own partner is there."""
    image, text = embeddings(12)
    names = np.array(["a", "b", None] * 4, dtype=object)
    found = score(image, text, groups=names).distributions
    of_score = found.scores["neg_clip_loss"]
    cosines = image.half().double() @ text.half().double().T
    expected = torch.zeros(12, 12)
    for i in range(12):
        for j in range(12):
            if i == j:
                continue
            kept_texts = [k for k in range(12) if k != i]
            kept_images = [k for k in range(12) if k != j]
            rivals = (20 * cosines[i, kept_texts]).exp().sum().log()
            rivals += (20 * cosines[kept_images, j]).exp().sum().log()
            expected[i, j] = cosines[i, j] - rivals / 40
    off_diagonal = expected[~torch.eye(12, dtype=bool)]
    assert of_score.mismatched.size == 132
    assert of_score.mismatched.mean - 1 == pytest.approx(off_diagonal.mean().item(), abs=1e-5)
    histogram = Histogram.of(off_diagonal + 1)
    assert np.abs((of_score.mismatched.counts - histogram.counts).cumsum()).max() <= 1
    plain = score(image, text, groups=names)
    assert of_score.matched.mean - 1 == pytest.approx(
        plain.columns["neg_clip_loss"].mean(), abs=1e-5
    )
    assert {name: group.mismatched.size for name, group in of_score.groups.items()} == {
        "a": 12,
        "b": 12,
        None: 12,
    }
    assert found.mismatched.counts.tolist() == plain.distributions.mismatched.counts.tolist()


def test_an_eighth_of_the_mismatches_of_a_large_block_tells_their_distribution():
    image, text = embeddings(2048)
    found = score_pairs(
        image, text, scale=20.0, shard="s", block_size=2048, forget_percent=10.0, seed=0
    ).distributions.scores["neg_clip_loss"]
    assert found.mismatched.size == 8 * 256 * 255
    cosines = image.half().float() @ text.half().float().T
    block = BlockStatistics.of(cosines, 20.0)
    every = mismatched_scores(cosines, block.i2t_rivals, block.t2i_rivals, 20.0)
    every = Histogram.of(every[~torch.eye(2048, dtype=bool)] + 1)
    shares = [each.counts.cumsum() / each.size for each in (found.mismatched, every)]
    assert np.abs(shares[0] - shares[1]).max() < 0.01


def test_captions_of_one_image_are_no_mismatches_of_neg_clip_loss():
    image, text = embeddings(8)
    images = np.arange(8) // 2
    shared = image[torch.arange(8) // 2 * 2]
    found = score(shared, text, images=images).distributions
    of_score = found.scores["neg_clip_loss"]
    assert of_score.mismatched.size == found.mismatched.size == 8 * 6
    assert -1.5 < of_score.mismatched.mean - 1 < 0


def test_captions_of_one_image_are_no_candidates_in_any_block():
    image, text = embeddings(300)
    images = np.random.default_rng(0).permutation(300) // 3
    found = score(image[torch.from_numpy(images) * 3], text, images=images)
    for block in range(5):
        members = np.flatnonzero(found.columns["block"] == block)
        cosines = image[images[members] * 3].half().float() @ text[members].half().float().T
        differ = torch.from_numpy(images[members][:, None] != images[members])
        above = ((cosines > cosines.diagonal()[:, None]) & differ).sum(1)
        assert np.array_equal(found.columns["i2t_rank"][members], above.numpy())


def test_equal_captions_of_other_images_are_no_known_mismatches():
    """Eight images with four captions, two of each: 8 x 6 of the 56 others are mismatches."""
    image, text = embeddings(8)
    captions = caption_numbers(["a", "b", "c", "d"] * 2)
    text = text[torch.arange(8) % 4]
    found = score(image, text, captions=captions)
    plain = score(image, text)
    of_score = found.distributions.scores["neg_clip_loss"]
    assert found.distributions.mismatched.size == of_score.mismatched.size == 8 * 6
    cosines = image.half().float() @ text.half().float().T
    differ = torch.from_numpy(captions[:, None] != captions)
    expected = Histogram.of(cosines[differ])
    assert (found.distributions.mismatched.counts == expected.counts).all()
    assert found.distributions.mismatched.mean == pytest.approx(expected.mean, abs=1e-4)
    means = (cosines * differ).sum(dim=1) / 6
    assert (found.distributions.image_means.counts == Histogram.of(means).counts).all()
    # A text that two pairs have is one of four that tell how well the null is known.
    assert found.distributions.caption_means.size == 4
    # The scores themselves, by their papers, compare with all others.
    assert (found.columns["neg_clip_loss"] == plain.columns["neg_clip_loss"]).all()
    assert (found.columns["ncu_confidence"] == plain.columns["ncu_confidence"]).all()
    assert (found.columns["i2t_rank"] == plain.columns["i2t_rank"]).all()


def test_captions_that_are_not_known_are_like_no_other():
    assert caption_numbers(["a", None, "a", None]).tolist() == [0, 1, 0, 2]


def test_distributions_of_scores_add_up_and_are_written():
    image, text = embeddings(60)
    options = {"groups": np.array(["a"] * 60, dtype=object)}
    first, second = (score(image[s], text[s], **options).distributions for s in _HALVES)
    total = Distributions()
    total += first
    total += second
    again = Distributions.from_json(json.loads(json.dumps(total.to_json())))
    of_score = again.score("neg_clip_loss")
    for mine, theirs in (
        (of_score.mismatched, [one.score("neg_clip_loss").mismatched for one in (first, second)]),
        (
            of_score.group("a").matched,
            [one.score("neg_clip_loss").group("a").matched for one in (first, second)],
        ),
    ):
        assert np.array_equal(mine.counts, sum(one.counts for one in theirs))
    assert again.score("similarity") is again


_HALVES = (slice(0, 25), slice(25, 60))


def test_similarity_does_not_go_through_float16():
    image, text = embeddings(10)
    assert scores_close(score(image, text).columns["similarity"], (image * text).sum(1))


def scores_close(found, expected):
    return np.abs(found - expected.numpy()).max() < 1e-7


@pytest.mark.parametrize("n", [0, 1])
def test_tiny_shards(n):
    scores = score(*embeddings(n))
    assert len(scores.columns["similarity"]) == n
    assert scores.distributions.mismatched.size == 0
    if n:  # without a pair there is no block
        assert scores.columns["i2t_rank"].tolist() == [0]
        assert scores.columns["ncu_confidence"].tolist() == [1.0]
        assert scores.columns["ncu_split"].tolist() == ["retain"]


def test_groups_are_those_of_the_pairs_whatever_block_they_are_in():
    image, text = embeddings(300)
    names = np.array([("a", "b", None)[n % 3] for n in range(300)], dtype=object)
    scores = score(image, text, groups=names)
    assert scores.columns["block"].max() > 0
    for name in ("a", "b"):
        own = torch.from_numpy(scores.columns["similarity"][names == name])
        found = scores.distributions.groups[name].matched
        assert np.array_equal(found.counts, Histogram.of(own).counts)


# Counts of what went wrong add up, and keep the first reason.


def failures(*reasons):
    made = ColumnFailures()
    for reason in reasons:
        made.add("beauty", reason)
    return made


def test_of_many_failures_the_first_reason_is_kept():
    total = failures("no image", "too dark")
    total += failures("too bright")
    total.add("age", "unknown", 5)
    assert total.counts == {"beauty": 3, "age": 5}
    assert total.reasons == {"beauty": "no image", "age": "unknown"}


def test_statistics_are_read_as_they_are_written():
    stats = ShardStats(7, {"ok": 4, "image_corrupt": 3}, 1.25, "cut short", failures("no image"))
    again = ShardStats.from_json(stats.to_json())
    assert again == stats
    assert again.ok == 4
    whole = ShardStats(1, {"ok": 1}, 0.5)
    assert ShardStats.from_json(whole.to_json()) == whole


def test_pairs_without_a_label_are_a_group_apart_from_one_of_any_name():
    groups = {None: Distributions(), "": Distributions(), "unlabelled": Distributions()}
    for number, group in enumerate(groups.values()):
        group.matched.units = number
    again = Distributions.from_json(Distributions(groups=groups).to_json()).groups
    assert {name: group.matched.units for name, group in again.items()} == {
        None: 0, "": 1, "unlabelled": 2
    }  # fmt: skip
