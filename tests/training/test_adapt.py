"""Adaptation is the trainer on chosen keys: what it sees, what it refuses, what it reports."""

import shutil

import pytest
import torch

from ncclean.data.decode import ImageDecoder
from ncclean.data.member_samples import sample_uid
from ncclean.data.shards import resolve_shards
from ncclean.data.tar import TarSamples
from ncclean.models.estimator import Estimator
from ncclean.training import adapt as module
from ncclean.training.adapt import AdaptOptions, Chosen, ChosenKeys, adapt
from ncclean.training.objectives.clip import clip_loss
from tests.report.tables import write_scores


@pytest.fixture
def estimator():
    return Estimator.load("demo-noisy", precision="fp32", device="cpu")


def keys_of(shards, count):
    """Key, uid and caption number of the first `count` readable samples of each shard."""
    return {
        shard.name: {
            Chosen(sample.key, sample_uid(sample.metadata, shard.name, sample.key), 0)
            for sample in list(TarSamples(shard))[:count]
            if not sample.metadata["broken"]
        }
        for shard in shards
    }


def test_only_the_chosen_pairs_are_shown_and_every_step_counts(corpus, estimator, monkeypatch):
    shards = resolve_shards([str(corpus)])[:2]
    chosen = keys_of(shards, 60)
    pairs = sum(map(len, chosen.values()))
    uids, epoch = [], module._EnoughPairs.epoch

    def watched(self, *place):
        for batch in epoch(self, *place):
            uids.append(batch.uids)
            yield batch

    monkeypatch.setattr(module._EnoughPairs, "epoch", watched)
    steps = []
    options = AdaptOptions(steps=5, batch_size=32, learning_rate=1e-3)
    result = adapt(estimator, shards, chosen, options, lambda step, loss: steps.append(step))
    assert steps == [1, 2, 3, 4, 5]
    assert len(result.losses) == 5
    assert result.skipped == {}
    first_epoch = [uid for batch in uids[: pairs // 32] for uid in batch]
    assert len(set(first_epoch)) == len(first_epoch) == pairs // 32 * 32
    assert {uid for batch in uids for uid in batch} <= {
        uid for of_shard in chosen.values() for _, uid, *_ in of_shard
    }


def test_images_are_seen_as_the_estimator_sees_them(corpus, estimator):
    shards = resolve_shards([str(corpus)])[:1]
    (chosen,) = (keys := keys_of(shards, 40)).values()
    samples = [
        sample for sample in TarSamples(shards[0]) if sample.key in {key for key, *_ in chosen}
    ]
    decoder = ImageDecoder(estimator.preprocessing)
    image = estimator.encode_image(torch.stack([decoder(one.image).pixels for one in samples]))
    text = estimator.encode_text([one.caption for one in samples])
    expected = clip_loss(image, text, estimator.model.logit_scale.exp()).item()
    result = adapt(estimator, shards, keys, AdaptOptions(steps=1, batch_size=len(samples)))
    (loss,) = result.losses
    assert loss == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_the_seed_decides_the_result(corpus, estimator):
    shards = resolve_shards([str(corpus)])[:1]
    start = {name: value.clone() for name, value in estimator.model.state_dict().items()}

    def losses(seed):
        estimator.model.load_state_dict(start)
        options = AdaptOptions(steps=2, batch_size=32, seed=seed)
        return adapt(estimator, shards, keys_of(shards, 200), options).losses

    assert losses(1) == losses(1) != losses(2)


def test_a_shard_that_breaks_off_is_reported(corpus, estimator, tmp_path):
    for name in ("00000.tar", "00001.tar"):
        shutil.copy(corpus / name, tmp_path / name)
    whole = resolve_shards([str(tmp_path)])
    chosen = keys_of(whole, 500)
    cut = tmp_path / "00001.tar"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    options = AdaptOptions(steps=2, batch_size=64)
    failed = adapt(estimator, resolve_shards([str(tmp_path)]), chosen, options).failed_shards
    assert list(failed) == ["00001"]
    assert failed["00001"]


@pytest.mark.parametrize("steps", [1, 6])
def test_fewer_readable_pairs_than_a_batch_are_refused(corpus, estimator, steps, refused):
    """Within the first epoch or after it: the keys that no shard holds are not made up for."""
    shards = resolve_shards([str(corpus)])[:1]
    (keys,) = keys_of(shards, 25).values()
    missing = {Chosen(f"missing-{number}", f"{number}", 0) for number in range(75)}
    options = AdaptOptions(steps=steps, batch_size=32)
    refused(adapt, estimator, shards, {shards[0].name: keys | missing}, options)


def test_unreadable_pairs_are_counted_where_a_batch_is_left(corpus, estimator):
    shards = resolve_shards([str(corpus)])[:1]
    (keys,) = keys_of(shards, 50).values()
    missing = {Chosen(f"missing-{number}", f"{number}", 0) for number in range(50)}
    options = AdaptOptions(steps=3, batch_size=32)  # a whole epoch
    result = adapt(estimator, shards, {shards[0].name: keys | missing}, options)
    assert len(result.losses) == 3
    assert set(result.skipped) == {"missing"}
    assert 46 <= result.skipped["missing"] <= 50  # four pairs fill no batch


def test_an_exploding_loss_stops_it(corpus, estimator, refused):
    with torch.no_grad():
        estimator.model.text_projection.fill_(float("nan"))
    shards = resolve_shards([str(corpus)])[:1]
    refused(adapt, estimator, shards, keys_of(shards, 100), AdaptOptions(steps=2, batch_size=32))


def test_chosen_keys_are_a_selection():
    pairs = {Chosen("1", "u1", 0), Chosen("2", "u2", 0)}
    chosen = ChosenKeys({"a.tar": pairs, "b.tar": set()})
    assert chosen.counts() == {"a.tar": 2, "b.tar": 0}
    assert {key: one.uid for key, (one,) in chosen.samples("a.tar").items()} == {
        "1": "u1",
        "2": "u2",
    }
    assert chosen.samples("c.tar") == {}


def test_of_several_captions_those_that_are_clean_are_shown(tmp_path):
    rows = [
        {"uid": "u", "key": "k", "caption_number": number, "clean_posterior": posterior}
        for number, posterior in enumerate([0.1, 0.95, 0.99, float("nan")])
    ]
    table = write_scores(tmp_path / "scores.parquet", rows)
    chosen, scored = module._strictly_clean([str(table)], 0.9)
    assert scored == 3
    assert ChosenKeys(chosen).counts() == {"00000": 2}
    assert [one.caption for one in ChosenKeys(chosen).samples("00000")["k"]] == [1, 2]
