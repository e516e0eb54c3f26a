"""Exported shards are read by open_clip's own training loader."""

from types import SimpleNamespace

import pytest
from torchvision.transforms import Compose, Resize, ToTensor

import ncclean
from ncclean.models.estimator import Estimator
from tests.factories import rendered

PAIRS, BATCH = 48, 12


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The exported shards of a corpus in which nothing is noisy."""
    folder = tmp_path_factory.mktemp("open-clip")
    rendered(folder / "in", pairs=PAIRS, shard_size=16, noise={}, seed=3)
    sources = [str(folder / "in")]
    scores = str(folder / "scores.parquet")
    ncclean.score(sources, scores, model="demo", shift=0.1)
    ncclean.select([scores], str(folder / "all.parquet"), where="status = 'ok'")
    ncclean.export(str(folder / "all.parquet"), str(folder / "out"), shards=sources,
                   samples_per_shard=16, workers=1)  # fmt: skip
    return folder / "out"


def test_open_clip_trains_on_exported_shards(shards):
    from open_clip_train.data import get_wds_dataset

    settings = SimpleNamespace(
        train_data=str(shards / "{00000..00002}.tar"), train_data_upsampling_factors=None,
        train_num_samples=PAIRS, val_data=None, val_num_samples=None, dataset_resampled=False,
        seed=0, workers=1, batch_size=BATCH, world_size=1, rank=0, local_rank=0, distributed=False,
    )  # fmt: skip
    tokenizer = Estimator.load("demo", None).tokenizer
    transform = Compose([Resize((16, 16)), ToTensor()])
    loader = get_wds_dataset(settings, transform, True, tokenizer=tokenizer).dataloader
    batches = list(loader)
    assert [tuple(image.shape) for image, _ in batches] == [(BATCH, 3, 16, 16)] * (PAIRS // BATCH)
    assert all(text.shape == batches[0][1].shape for _, text in batches)
