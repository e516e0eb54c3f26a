"""Features of frozen towers, computed once and shuffled afterwards."""

import pytest
import torch

from ncclean.data.shards import resolve_shards
from ncclean.data.weighted_loader import LoaderOptions, WeightedLoader
from ncclean.training.batches import CachedFeatures, encode_features


@pytest.fixture(scope="module")
def loader(corpus, demo_estimator):
    options = LoaderOptions(batch_size=200, augment=False, shuffle=False, drop_last=False)
    first = resolve_shards([str(corpus)])[:1]
    return WeightedLoader(first, None, demo_estimator.preprocessing, options)


@pytest.fixture(scope="module")
def cached(loader, demo_estimator):
    return CachedFeatures(demo_estimator, loader, 64, seed=3)


def test_features_are_those_before_normalisation(loader, demo_estimator):
    batch = next(loader.epoch(0))
    image, text = encode_features(demo_estimator, batch.pixels[:9], batch.captions[:9])
    expected = demo_estimator.encode_image(batch.pixels[:9])
    assert torch.allclose(torch.nn.functional.normalize(image, dim=1), expected, atol=1e-5)
    expected = demo_estimator.encode_text(batch.captions[:9])
    assert torch.allclose(torch.nn.functional.normalize(text, dim=1), expected, atol=1e-5)
    assert (image.norm(dim=1) - 1).abs().min() > 0.1


def test_every_pair_once_an_epoch_with_its_own_features(cached, loader, demo_estimator):
    known = {}
    for batch in loader.epoch(0):
        found = encode_features(demo_estimator, batch.pixels, batch.captions)
        known |= {uid: (found[0][i], found[1][i]) for i, uid in enumerate(batch.uids)}
    epochs = [list(cached.epoch(number)) for number in range(2)]
    orders = [[uid for batch in batches for uid in batch.uids] for batches in epochs]
    assert orders[0] != orders[1]
    assert cached.steps_per_epoch == len(known) // 64
    assert len(orders[0]) == 64 * cached.steps_per_epoch
    for batch in epochs[0]:
        for row, uid in enumerate(batch.uids):
            for side in range(2):
                assert torch.allclose(
                    batch.features[side][row], known[uid][side], rtol=2e-3, atol=1e-2
                )


def test_an_epoch_can_be_taken_up_at_any_step(cached):
    whole = [batch.uids for batch in cached.epoch(5)]
    assert [batch.uids for batch in cached.epoch(5, 3)] == whole[3:]


def test_too_few(loader, demo_estimator, refused):
    refused(CachedFeatures, demo_estimator, loader, 5000)
