"""Training batches: each selected sample once, whoever asks, however often it is interrupted."""

import io
import json
import shutil
import tarfile
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ncclean.data.counting import count_samples
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.shards import resolve_shards
from ncclean.data.tar import TarSamples
from ncclean.data.weighted_loader import LoaderOptions, WeightedLoader
from ncclean.errors import InputError
from tests import hostile
from tests.factories import rendered

SPEC = Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(
        tmp_path_factory.mktemp("loader") / "shards",
        pairs=330,
        shard_size=90,
        noise={"ncr": 0.2},
        seed=3,
    )


@pytest.fixture(scope="module")
def rows(shards):
    """What a score table would say of every sample: shard, key, uid, caption."""
    found = []
    for shard in resolve_shards([str(shards)]):
        for sample in TarSamples(shard):
            found.append((shard.name, sample.key, sample.metadata["uid"], sample.caption))
    return found


@pytest.fixture(scope="module")
def selection(rows, tmp_path_factory):
    """Two samples of three, with weights that tell them apart; every fifth is to be forgotten."""
    path = tmp_path_factory.mktemp("selection") / "selection.parquet"
    kept = [(i, row) for i, row in enumerate(rows) if i % 3]
    table = pa.table({
        "uid": [uid for _, (_, _, uid, _) in kept],
        "shard": [shard for _, (shard, _, _, _) in kept],
        "key": [key for _, (_, key, _, _) in kept],
        "weight": pa.array([i / 100 for i, _ in kept], pa.float32()),
        "split": ["forget" if i % 5 == 0 else "retain" for i, _ in kept],
    })  # fmt: skip
    pq.write_table(table, path, row_group_size=50)
    return path


def loader(shards, selection=None, rank=0, world_size=1, **options):
    defaults = {"batch_size": 20, "chunk": 60, "augment": False}
    return WeightedLoader(
        resolve_shards([str(shards)]),
        SelectionReader(str(selection)) if selection else None,
        SPEC,
        LoaderOptions(**{**defaults, **options}),
        rank=rank,
        world_size=world_size,
    )


def uids(batches):
    return [uid for batch in batches for uid in batch.uids]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_each_selected_sample_once_over_all_ranks(shards, selection, rows, world):
    seen = []
    for rank in range(world):
        made = loader(shards, selection, rank, world, drop_last=False, batch_size=7, chunk=21)
        batches = list(made.epoch(0))
        assert len(batches) == made.steps_per_epoch
        seen.append(uids(batches))
    expected = {uid for i, (_, _, uid, _) in enumerate(rows) if i % 3}
    together = Counter(uid for each in seen for uid in each)
    assert set(together) == expected
    padding = -len(expected) % world  # ranks of a sample less show one twice
    assert sum(together.values()) == len(expected) + padding
    assert len({len(each) for each in seen}) == 1


def test_images_of_another_size_than_when_scored_are_named_once(shards, selection, caplog):
    scored = pq.read_table(selection)
    sizes = {}
    for shard in resolve_shards([str(shards)]):
        sizes |= {(shard.name, one.key): one.place.image_size for one in TarSamples(shard)}
    columns = (scored.column(name).to_pylist() for name in ("shard", "key"))
    of_rows = [sizes[pair] for pair in zip(*columns, strict=True)]
    path = selection.with_name("sizes.parquet")
    for change in (0, 1):
        of_rows[-3:] = [size + change for size in of_rows[-3:]]
        pq.write_table(scored.append_column("image_size", pa.array(of_rows, pa.int64())), path)
        assert len(uids(loader(shards, path, drop_last=False).epoch(0))) == len(scored)
        said = [one.getMessage() for one in caplog.records]
        assert len(said) == change
    assert "images have another size than when they were scored" in said[0]


def test_facts_belong_to_their_sample(shards, selection, rows):
    known = {uid: (i, caption) for i, (_, _, uid, caption) in enumerate(rows)}
    pictures = {}
    for shard in resolve_shards([str(shards)]):
        for sample in TarSamples(shard):
            pictures[sample.metadata["uid"]] = ImageDecoder(SPEC)(sample.image).pixels
    for batch in loader(shards, selection, drop_last=False, batch_size=21, chunk=63).epoch(1):
        assert batch.pixels.dtype == torch.uint8
        for row, uid in enumerate(batch.uids):
            index, caption = known[uid]
            assert batch.captions[row] == caption
            assert batch.weights[row].item() == pytest.approx(index / 100)
            assert batch.is_forget[row].item() == (index % 5 == 0)
            assert torch.equal(batch.pixels[row], pictures[uid])


def test_order_depends_on_seed_and_epoch_alone(shards, selection):
    first = uids(loader(shards, selection).epoch(0))
    assert uids(loader(shards, selection, decode_threads=5).epoch(0)) == first
    assert uids(loader(shards, selection).epoch(1)) != first
    assert uids(loader(shards, selection, seed=1).epoch(0)) != first
    unshuffled = uids(loader(shards, selection, shuffle=False).epoch(0))
    assert unshuffled == pq.read_table(selection)["uid"].to_pylist()[: len(unshuffled)]


@pytest.mark.parametrize("step", [1, 3, 10])  # in a chunk, between two, the last
def test_an_epoch_goes_on_at_any_step(shards, selection, step):
    made = loader(shards, selection, augment=True)
    whole = list(made.epoch(2))
    rest = list(made.epoch(2, first_step=step))
    assert len(rest) == len(whole) - step
    for again, before in zip(rest, whole[step:], strict=True):
        assert again.uids == before.uids
        assert torch.equal(again.pixels, before.pixels)


def test_without_a_selection_all_usable_samples(shards, rows):
    made = loader(shards, drop_last=False)
    assert made.samples == 330
    assert sorted(uids(made.epoch(0))) == sorted(uid for _, _, uid, _ in rows)


def test_augmented_crops_differ_by_epoch(shards, selection):
    made = loader(shards, selection, augment=True, shuffle=False)
    first, second = next(iter(made.epoch(0))), next(iter(made.epoch(1)))
    assert first.uids == second.uids
    assert not torch.equal(first.pixels, second.pixels)
    difference = (first.pixels.float() - second.pixels.float()).abs().mean()
    assert 0 < difference < 60  # the same pictures, cropped elsewhere


def test_bad_samples_are_counted_and_replaced(shards, selection, rows, tmp_path):
    """A selection made before three images broke and one shard lost its end."""
    broken = tmp_path / "shards"
    shutil.copytree(shards, broken)
    spoilt = [key for shard, key, _, _ in rows if shard == "00000"][1:6]
    with tarfile.open(shards / "00000.tar") as old, tarfile.open(broken / "00000.tar", "w") as new:
        for member in old:
            data = old.extractfile(member).read()
            key, extension = member.name.split(".")
            if key in spoilt and extension in ("jpg", "png", "webp"):
                data = data[: len(data) // 3]
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    cut = (broken / "00003.tar").read_bytes()
    (broken / "00003.tar").write_bytes(cut[: len(cut) // 2])
    made = loader(broken, selection, drop_last=False)
    batches = list(made.epoch(0))
    whole = loader(shards, selection, drop_last=False)
    assert [len(batch.uids) for batch in batches] == [len(b.uids) for b in whole.epoch(0)]
    selected = set(pq.read_table(selection)["key"].to_pylist())
    unusable = [found for batch in batches for found in batch.unusable.values()]
    counts = Counter(found.reason for found in unusable)
    assert counts["image_corrupt"] == len(selected & set(spoilt))
    assert counts["shard_error"] > 10
    assert {found.shard for found in unusable if found.error} == {"00003"}
    own = [
        uid for batch in batches for row, uid in enumerate(batch.uids) if row not in batch.unusable
    ]
    everything = Counter(uids(whole.epoch(0)))
    lost = everything - Counter(own)
    assert Counter(own) <= everything
    assert lost.total() == len(unusable)


def test_a_shard_of_which_nothing_can_be_read_stops_no_training(shards, rows, tmp_path):
    """Its chunks are filled with other samples, the same after resuming."""
    broken = tmp_path / "shards"
    broken.mkdir()
    for name in ("00000", "00001"):
        with (
            tarfile.open(shards / f"{name}.tar") as old,
            tarfile.open(broken / f"{name}.tar", "w") as new,
        ):
            for member in old:
                data = old.extractfile(member).read()
                if name == "00000" and member.name.endswith((".jpg", ".png", ".webp")):
                    data = data[: len(data) // 3]
                member.size = len(data)
                new.addfile(member, io.BytesIO(data))
    made = loader(broken, None, chunk=20, shuffle=False)
    batches = list(made.epoch(0))
    assert len(batches) == made.steps_per_epoch
    assert {len(batch.uids) for batch in batches} == {20}
    assert set(uids(batches)) == {uid for shard, _, uid, _ in rows if shard == "00001"}
    assert len(set(batches[0].uids)) == 20
    again = list(loader(broken, None, chunk=20, shuffle=False).epoch(0, 3))
    assert [batch.uids for batch in again] == [batch.uids for batch in batches[3:]]
    (broken / "00001.tar").unlink()
    with pytest.raises(InputError, match="none of the selected samples can be read"):
        list(loader(broken, None, chunk=20).epoch(0))


def test_pairs_without_a_usable_caption_are_counted_by_their_reason(tmp_path):
    """The headers of a tar count them; they are there, so they are not missing."""
    texts = {"a": b"a dog", "b": b" ", "c": b"a cat", "d": b"\xff\xfe\xff"}
    members = [member for key in texts for member in hostile.sample(key, hostile.JPEG, texts[key])]
    (tmp_path / "0.tar").write_bytes(hostile.tar_bytes(members))
    (tmp_path / "sizes.json").write_text('{"0.tar": 5}')
    (batch,) = loader(tmp_path, None, batch_size=5, chunk=5).epoch(0)
    reasons = Counter(unusable.reason for unusable in batch.unusable.values())
    assert reasons == {"caption_missing": 1, "caption_not_text": 1, "missing": 1}


@pytest.mark.parametrize(
    ("written", "meant"),
    [(True, 1), (0, 0), (300, -1), (7, -1), ("yes", -1), ("True", 1), ([1], 1), ([], -1)],
)
def test_truth_is_one_or_zero_or_unknown(tmp_path, written, meant):
    told = json.dumps({"is_noisy": written}).encode()
    members = [
        member
        for key in ("a", "b")
        for member in [*hostile.sample(key, hostile.JPEG), (f"{key}.json", told)]
    ]
    (tmp_path / "0.tar").write_bytes(hostile.tar_bytes(members))
    (batch,) = loader(tmp_path, None, batch_size=2, chunk=2).epoch(0)
    assert batch.is_noisy.tolist() == [meant, meant]


def test_truth_is_that_of_the_caption_shown(tmp_path):
    record = {"caption": ["one", "two"], "is_noisy": [False, True]}
    members = [
        member
        for key in "abcd"
        for member in [(f"{key}.jpg", hostile.JPEG), (f"{key}.json", json.dumps(record).encode())]
    ]
    (tmp_path / "0.tar").write_bytes(hostile.tar_bytes(members))
    truth = [
        flag
        for epoch in range(8)
        for batch in loader(tmp_path, None, batch_size=4, chunk=4).epoch(epoch)
        for flag in batch.is_noisy.tolist()
    ]
    assert set(truth) == {0, 1}  # each epoch draws one of the captions


def test_a_selection_of_other_shards_is_refused(shards, selection, refused):
    refused(loader, shards / "00001.tar", selection)
    refused(loader, shards, selection, batch_size=1000)
    refused(loader, shards, shards / "00000.tar")


def test_shards_without_an_image_are_not_a_matter_of_the_batch(tmp_path, refused):
    (tmp_path / "0.tar").write_bytes(hostile.tar_bytes([("1.txt", b"a caption")]))
    refused(loader, tmp_path)


def test_counts_come_from_sizes_json_or_the_headers(shards, tmp_path):
    refs = resolve_shards([str(shards)])
    expected = {"00000": 90, "00001": 90, "00002": 90, "00003": 60}
    assert count_samples(refs) == (expected, {})
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    (copy / "sizes.json").write_text('{"00001.tar": 5}')
    assert count_samples(resolve_shards([str(copy)])).samples["00001"] == 5


def test_crops_are_distributed_as_torchvisions():
    import random

    from torchvision.transforms import RandomResizedCrop

    from ncclean.data.augment import random_crop

    image = torch.empty(3, 300, 400)
    theirs = np.array(
        [RandomResizedCrop.get_params(image, [0.9, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    )  # top, left, height, width
    ours = [random_crop(400, 300, random.Random(seed)) for seed in range(4000)]
    found = np.array([(box.top, box.left, box.height, box.width) for box in ours])
    for column in range(4):
        low, high = np.quantile(theirs[:, column], [0.1, 0.9])
        spread = theirs[:, column].std()
        assert found[:, column].mean() == pytest.approx(theirs[:, column].mean(), abs=0.1 * spread)
        assert np.quantile(found[:, column], [0.1, 0.9]) == pytest.approx([low, high], abs=4)


def test_the_truth_travels_where_the_json_has_it(shards, tmp_path):
    truth = {
        sample.metadata["uid"]: sample.metadata["is_noisy"]
        for shard in resolve_shards([str(shards)])
        for sample in TarSamples(shard)
    }
    found = {
        uid: noisy
        for batch in loader(shards).epoch(0)
        for uid, noisy in zip(batch.uids, batch.is_noisy.tolist(), strict=True)
    }
    assert len(found) == 320
    assert {truth[uid] for uid in found} == {True, False}
    assert all(found[uid] == int(truth[uid]) for uid in found)
    with tarfile.open(tmp_path / "bare.tar", "w") as tar:
        for shard in resolve_shards([str(shards)])[:1]:
            for sample in TarSamples(shard):
                for name, data in (("jpg", sample.image), ("txt", sample.caption.encode())):
                    info = tarfile.TarInfo(f"{sample.key}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    (batch, *_) = loader(tmp_path / "bare.tar").epoch(0)
    assert batch.is_noisy.tolist() == [-1] * 20


def test_each_chunk_and_epoch_and_rank_has_an_order_of_its_own(shards):
    """Places of the samples of three chunks of a shard, in two epochs of two ranks."""
    (tar, *_) = resolve_shards([str(shards)])
    places = {sample.metadata["uid"]: row for row, sample in enumerate(TarSamples(tar))}
    orders = set()
    for rank in range(2):
        made = loader(tar.url, None, rank, 2, batch_size=15, chunk=15, drop_last=False)
        for epoch in range(2):
            for number, batch in enumerate(made.epoch(epoch)):
                first = rank * 45 + number * 15
                order = tuple(places[uid] - first for uid in batch.uids)
                assert sorted(order) == list(range(15))
                orders.add(order)
    assert len(orders) == 12


def test_each_batch_has_its_noise_in_other_places(shards):
    made = loader(shards, None, batch_noise=0.4, shuffle=False)
    captions = {
        sample.metadata["uid"]: sample.caption
        for shard in resolve_shards([str(shards)])
        for sample in TarSamples(shard)
    }

    def moved(epoch):
        return [
            tuple(captions[uid] != text for uid, text in zip(b.uids, b.captions, strict=True))
            for b in made.epoch(epoch)
        ]

    first, second = moved(0), moved(1)
    assert moved(0) == first
    assert len({*first, *second}) == 2 * made.steps_per_epoch
    assert all(4 <= sum(batch) <= 8 for batch in (*first, *second))


@pytest.mark.parametrize("captions", ["all", "sample"])
def test_mended_captions_are_trained_on(shards, rows, selection, tmp_path, captions):
    """Every other one; the rest stay as they are in the shard."""
    table = pq.read_table(selection)
    uids = table["uid"].to_pylist()
    mended = {uid: f"what is left of {uid}" for uid in uids[::2]}
    texts = pa.array([mended.get(uid) for uid in uids], pa.string())
    pq.write_table(table.append_column("caption", texts), tmp_path / "m.parquet")
    original = {uid: caption for _, _, uid, caption in rows}
    reader = loader(shards, tmp_path / "m.parquet", captions=captions)
    pairs = [
        pair for batch in reader.epoch(0) for pair in zip(batch.uids, batch.captions, strict=True)
    ]
    assert len(pairs) > 200
    assert all(caption == mended.get(uid, original[uid]) for uid, caption in pairs)


def test_mended_captions_of_an_image_with_several(tmp_path):
    data = [
        ("a.jpg", hostile.JPEG),
        ("a.json", json.dumps({"caption": ["zero", "one", "two"]}).encode()),
    ]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(data))
    table = pa.table({
        "uid": ["a"] * 2, "shard": ["s"] * 2, "key": ["a"] * 2,
        "weight": pa.array([1.0, 1.0], pa.float32()), "split": pa.nulls(2, pa.string()),
        "caption": [None, "on"], "caption_number": pa.array([2, 1], pa.int16()),
        "caption_rank": pa.array([1, 0], pa.int16()),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "m.parquet")
    batches = loader(
        tmp_path / "s.tar", tmp_path / "m.parquet", batch_size=2, drop_last=False
    ).epoch(0)
    assert sorted(caption for batch in batches for caption in batch.captions) == ["on", "two"]
