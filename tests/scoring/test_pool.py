"""`neg_clip_loss` against a pool of the corpus."""

import numpy as np
import pytest
import torch

from ncclean.scoring.columns import score_pairs
from ncclean.scoring.pool import Pool, sample_numbers
from tests.scoring.test_columns import embeddings

SCALE = 20.0


def rounded(pairs, seed):
    return [side.half().float() for side in embeddings(pairs, seed)]


def lse(cosines, keep):
    return np.log((np.exp(SCALE * cosines) * keep).sum(axis=1))


def score(image, text, pool, samples, **options):
    sizes = {"scale": SCALE, "shard": "00000", "block_size": 50, "forget_percent": 10, "seed": 0}
    return score_pairs(image, text, pool=(pool, samples), **{**sizes, **options})


def test_the_pool_is_what_it_would_be_in_one_batch_of_the_authors():
    """negCLIPLoss of a batch that is the corpus, though blocks and shards are smaller."""
    image, text = rounded(200, 0)
    samples = sample_numbers(map(str, range(200)))
    found = score(image, text, Pool(image, text, samples), samples)
    cosines = (image @ text.T).double()
    logits = SCALE * cosines
    expected = cosines.diagonal() - (logits.logsumexp(0) + logits.logsumexp(1)) / (2 * SCALE)
    assert found.columns["neg_clip_loss"] == pytest.approx(expected.numpy(), abs=1e-6)


def test_own_pair_is_counted_once_whether_in_the_pool_or_not():
    image, text = rounded(120, 0)
    v, t = rounded(80, 1)
    samples = sample_numbers(map(str, range(120)))
    # Ten pairs are in the pool; two more captions of the image of pair 3 are in it as well.
    images = torch.cat([v, image[:10], image[3:4], image[3:4]])
    captions = torch.cat([t, text[:10], text[20:22]])
    numbers = [*range(1000, 1080), *range(10), 3, 3]
    pool = Pool(images, captions, sample_numbers(map(str, numbers)))
    found = score(image, text, pool, samples)
    keep = np.arange(120)[:, None] != np.array(numbers)
    own = (image * text).sum(1).double().numpy()
    sides = [
        np.logaddexp(lse((mine @ theirs.T).double().numpy(), keep), SCALE * own)
        for mine, theirs in ((image, captions), (text, images))
    ]
    assert found.columns["neg_clip_loss"] == pytest.approx(own - sum(sides) / (2 * SCALE), abs=1e-6)


def test_known_mismatches_are_scored_as_pairs_are():
    """A pair whose caption is another's has the score of the known mismatch of both."""
    image, text = rounded(60, 0)
    samples = sample_numbers(map(str, range(60)))
    pool = Pool(image[:30], text[:30], samples[:30])
    found = score(image, text, pool, samples, block_size=60)
    known = found.distributions.scores["neg_clip_loss"].mismatched
    assert known.size == 60 * 59
    cosines = (image @ text.T).double().numpy()
    total = 0.0
    for i in range(60):
        for j in range(60):
            if i == j:
                continue
            captions = [text_ for text_ in range(30) if text_ != i]
            images = [image_ for image_ in range(30) if image_ != j]
            captions += [j] if j >= 30 else []
            images += [i] if i >= 30 else []
            i2t = np.log(np.exp(SCALE * cosines[i, captions]).sum())
            t2i = np.log(np.exp(SCALE * cosines[images, j]).sum())
            total += min(1.0, 1 + cosines[i, j] - (i2t + t2i) / (2 * SCALE))
    assert known.mean == pytest.approx(total / (60 * 59), abs=1e-5)


def test_memory_is_bounded_and_chunks_change_nothing(monkeypatch):
    image, text = rounded(300, 0)
    samples = sample_numbers(map(str, range(300)))
    pool = Pool(image, text, samples)
    whole = pool.rivals(image, text, samples, SCALE)
    monkeypatch.setattr("ncclean.scoring.pool._CHUNK_CELLS", 1000)
    pieces = pool.rivals(image, text, samples, SCALE)
    assert torch.allclose(whole.i2t, pieces.i2t, atol=1e-5)
    assert torch.allclose(whole.t2i, pieces.t2i, atol=1e-5)
    assert whole.in_pool.all()
