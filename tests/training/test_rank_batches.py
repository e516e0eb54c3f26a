"""A run that goes on with another number of ranks: each sample of the epoch once, in its step."""

from collections import Counter
from functools import partial

import pytest
import torch

from ncclean.data.counting import count_samples
from ncclean.data.decode import Preprocessing
from ncclean.data.options import LoaderOptions
from ncclean.data.shards import resolve_shards
from ncclean.data.train_batch import TrainBatch, joined
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.storage.run_folder import open_record
from ncclean.training import finetune
from ncclean.training.batches import RankBatches
from ncclean.training.finetune import counts_of, pieces_of
from ncclean.training.process_group import Ranks, rank_device
from tests.factories import rendered

BATCH = 24  # of all ranks
SPEC = Preprocessing(size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    out = tmp_path_factory.mktemp("pieces") / "shards"
    rendered(out, pairs=250, shard_size=40, broken=0.02, seed=5)
    return resolve_shards([str(out)])


def make(shards, pieces, options, piece, rows):
    options = LoaderOptions(batch_size=BATCH // pieces, **{"chunk": 48, "seed": 3, **options})
    return WeightedLoader(shards, None, SPEC, options, rank=piece, world_size=pieces, rows=rows)


def ranks_of(shards, pieces, world, **options):
    options = {"augment": False, "decode_threads": 1, **options}
    return [
        RankBatches(partial(make, shards, pieces, options), BATCH, pieces, Ranks(rank, world))
        for rank in range(world)
    ]


def steps(ranks, first=0, epoch=0):
    """The uids of each step of all ranks, in order."""
    return together(uids_of(ranks, first, epoch))


def uids_of(ranks, first=0, epoch=0):
    return [[batch.uids for batch in one.epoch(epoch, first)] for one in ranks]


def together(by_rank):
    return [[uid for uids in of_step for uid in uids] for of_step in zip(*by_rank, strict=True)]


@pytest.mark.parametrize(
    "pieces", [3, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2, 4))]
)
def test_a_step_has_the_same_samples_on_any_number_of_ranks(shards, pieces):
    whole = steps(ranks_of(shards, pieces, pieces))
    assert len(whole) == ranks_of(shards, pieces, pieces)[0].steps_per_epoch
    for world in {1, 2, 3, 4, 6} - {pieces}:
        by_rank = uids_of(ranks_of(shards, pieces, world))
        assert {len(uids) for one in by_rank for uids in one} == {BATCH // world}
        assert together(by_rank) == whole


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (3, 4)])
def test_an_epoch_that_goes_on_shows_every_sample_once(shards, before, after):
    begun = steps(ranks_of(shards, before, before))
    for interrupted in (1, 7):
        rest = steps(ranks_of(shards, before, after), first=interrupted)
        shown = Counter(uid for step in begun[:interrupted] + rest for uid in step)
        whole = Counter(uid for step in begun for uid in step)
        assert shown == whole


def test_pixels_are_those_of_the_run_as_it_began(shards):
    [whole] = ranks_of(shards, 1, 1, augment=True)
    halves = ranks_of(shards, 1, 2, augment=True)
    for one, *parts in zip(whole.epoch(1, 3), *(half.epoch(1, 3) for half in halves), strict=True):
        assert torch.equal(one.pixels, torch.cat([part.pixels for part in parts]))
        assert one.captions == [caption for part in parts for caption in part.captions]


def test_an_incomplete_batch_is_as_large_on_all_ranks(shards):
    ranks = ranks_of(shards, 1, 4, drop_last=False)
    last = [list(one.epoch(0))[-1].uids for one in ranks]
    assert len({len(uids) for uids in last}) == 1
    assert len(last[0]) < BATCH // 4
    [whole] = ranks_of(shards, 1, 1, drop_last=False)
    assert {uid for uids in last for uid in uids} == set(list(whole.epoch(0))[-1].uids)


def test_joined_batches_keep_every_field():
    def batch(number, **fields):
        return TrainBatch(
            pixels=torch.full((2, 3, 4, 4), number, dtype=torch.uint8),
            captions=[f"{number}a", f"{number}b"],
            uids=[f"u{number}", f"v{number}"],
            weights=torch.tensor([number, 0.5]),
            is_forget=torch.tensor([True, False]),
            **fields,
        )

    whole = {
        "is_noisy": torch.tensor([1, -1], dtype=torch.int8),
        "features": (torch.ones(2, 3), torch.zeros(2, 3)),
        "pair_names": ["p", "q"],
    }
    both = joined([batch(1, **whole), batch(2, **whole)])
    assert both.pixels[:, 0, 0, 0].tolist() == [1, 1, 2, 2]
    assert (both.captions, both.uids) == (["1a", "1b", "2a", "2b"], ["u1", "v1", "u2", "v2"])
    assert both.weights.tolist() == [1, 0.5, 2, 0.5]
    assert both.is_forget.tolist() == [True, False, True, False]
    assert both.is_noisy.tolist() == [1, -1, 1, -1]
    assert [tuple(one.shape) for one in both.features] == [(4, 3), (4, 3)]
    assert both.pair_names == ["p", "q", "p", "q"]
    mixed = joined([batch(1, **whole), batch(2)])
    assert (mixed.is_noisy, mixed.features, mixed.pair_names) == (None, None, None)


def test_the_number_of_pieces_is_that_of_the_first_start(tmp_path):
    def open_run():
        return open_record(tmp_path / "model", "finetune", {}, overwrite=False)

    with open_run() as record:
        assert pieces_of(record, Ranks(0, 4)) == 4
    with open_run() as record:
        assert pieces_of(record, Ranks(0, 2)) == 4


def test_samples_are_counted_once_for_all_starts_of_a_run(shards, tmp_path, monkeypatch):
    with open_record(tmp_path / "model", "finetune", {}, overwrite=False) as record:
        counts = counts_of(record, Ranks(), shards)
    assert counts == count_samples(shards)
    assert counts.samples
    monkeypatch.setattr(finetune, "count_samples", None)
    with open_record(tmp_path / "model", "finetune", {}, overwrite=False) as record:
        assert counts_of(record, Ranks(), shards) == counts
    options = LoaderOptions(batch_size=BATCH)
    assert WeightedLoader(shards, None, SPEC, options, counts={"00000": 24}).samples == 24


def test_unusable_samples_of_a_batch_are_replaced_by_different_ones(tmp_path):
    rendered(tmp_path / "shards", pairs=240, shard_size=240, broken=0.4, seed=5)
    [one] = ranks_of(resolve_shards([str(tmp_path / "shards")]), 1, 1, chunk=240)
    for batch in one.epoch(0):
        assert max(Counter(batch.uids).values()) <= 2


@pytest.mark.parametrize(
    ("device", "rank", "expected"),
    [
        ("auto", "1", "cuda:1"),
        ("cuda", "3", "cuda:1"),
        ("cpu", "1", "cpu"),
        ("cuda:0", "1", "cuda:0"),
    ],
)
def test_each_process_of_a_machine_takes_a_gpu(monkeypatch, device, rank, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", rank)
    assert rank_device(device) == expected


def test_without_a_gpu_the_choice_is_left_to_the_estimator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rank_device("auto") == "auto"
