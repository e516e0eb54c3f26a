"""The score columns against a plain numpy computation."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ncclean.scoring.columns import score_pairs


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
    assert sorted(np.unique(scores.block)) == list(range(5))
    for block in np.unique(scores.block):
        members = np.flatnonzero(scores.block == block)
        v = image[members].half().float().numpy()
        t = text[members].half().float().numpy()
        cosines = v @ t.T
        own = np.diag(cosines)
        rows = np.exp(20 * cosines) / np.exp(20 * cosines).sum(1, keepdims=True)
        columns = np.exp(20 * cosines) / np.exp(20 * cosines).sum(0, keepdims=True)
        confidence = (np.diag(rows) + np.diag(columns)) / 2
        assert scores.ncu_confidence[members] == pytest.approx(confidence, rel=1e-4)
        forget = np.zeros(len(members), dtype=bool)
        forget[np.argsort(scores.ncu_confidence[members], kind="stable")[: len(members) // 10]] = 1
        assert np.array_equal(scores.ncu_forget[members], forget)
        assert np.array_equal(scores.i2t_rank[members], (cosines > own[:, None]).sum(1))
        assert np.array_equal(scores.t2i_rank[members], (cosines > own[None, :]).sum(0))
        mutual = (own >= cosines.max(1)) & (own >= cosines.max(0))
        assert np.array_equal(scores.disncl_clean[members], mutual)
        lse = np.log(np.exp(20 * cosines).sum(1)) + np.log(np.exp(20 * cosines).sum(0))
        assert scores.neg_clip_loss[members] == pytest.approx(own - lse / 40, abs=1e-5)


def test_histograms_hold_every_pair_and_every_mismatch():
    scores = score(*embeddings(300))
    sizes = np.bincount(scores.block)
    assert scores.distributions.matched.size == 300
    assert scores.distributions.mismatched.size == (sizes * (sizes - 1)).sum()
    assert scores.distributions.matched.mean == pytest.approx(scores.similarity.mean(), abs=1e-6)


def test_similarity_does_not_go_through_float16():
    image, text = embeddings(10)
    assert scores_close(score(image, text).similarity, (image * text).sum(1))


def scores_close(found, expected):
    return np.abs(found - expected.numpy()).max() < 1e-7


@pytest.mark.parametrize("n", [0, 1])
def test_tiny_shards(n):
    scores = score(*embeddings(n))
    assert len(scores.similarity) == n
    assert scores.distributions.mismatched.size == 0
    assert scores.i2t_rank.tolist() == [0] * n
    assert scores.ncu_confidence.tolist() == [1.0] * n
    assert not scores.ncu_forget.any()
