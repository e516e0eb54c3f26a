"""A selection reaches other loops as it reaches `finetune`: the same pairs, weights, captions."""

import json
import logging
import pickle
import tarfile
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset as wds
from torch.utils.data import DataLoader

import ncclean
from ncclean.data.decode import Preprocessing
from ncclean.data.member_samples import sample_uid
from ncclean.data.options import LoaderOptions
from ncclean.data.reader import read_samples
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.sources import resolve_sources
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.errors import InputError
from ncclean.webdataset.stage import shard_name
from tests import hostile

SPEC = Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3)
PAIRS = 180


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    out = tmp_path_factory.mktemp("loops") / "shards"
    write_corpus(out, CorpusOptions(pairs=PAIRS, shard_size=50, noise={"ncr": 0.2}, seed=3), 1)
    return out


@pytest.fixture(scope="module")
def urls(shards):
    return sorted(map(str, shards.glob("*.tar")))


def write_selection(path, sources, kept=lambda row: row % 3 > 0, mended=lambda row: row % 7 == 0):
    """Select samples by their number: weights tell them apart, some captions are mended."""
    rows, number = [], 0
    for shard in resolve_sources([str(sources)]):
        for sample in read_samples(shard):
            if kept(number):
                uid = sample.metadata.get("uid") or f"{shard.name}/{sample.key}"
                text = f"mended {number}" if mended(number) else None
                rows.append((uid, shard.name, sample.key, number / 100, "retain", text))
            number += 1
    names = ("uid", "shard", "key", "weight", "split", "caption")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    columns["weight"] = pa.array(columns["weight"], pa.float32())
    columns["caption"] = pa.array(columns["caption"], pa.string())
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.fixture(scope="module")
def selection(shards, tmp_path_factory):
    return write_selection(tmp_path_factory.mktemp("selection") / "clean.parquet", shards)


def trained_on(shards, selection, **options):
    """Caption and weight of the pairs that `finetune` sees in an epoch."""
    loader = WeightedLoader(
        resolve_sources([str(shards)]),
        SelectionReader(selection),
        SPEC,
        LoaderOptions(batch_size=20, augment=False, seed=5, drop_last=False),
        **options,
    )
    return Counter(
        pair
        for batch in loader.epoch(1)
        for pair in zip(batch.captions, batch.weights.tolist(), strict=True)
    )


def seen(samples):
    return Counter((sample["txt"].decode(), sample["weight"]) for sample in samples)


def test_a_pipeline_sees_what_finetune_trains_on(shards, urls, selection):
    stage = ncclean.webdataset.select(selection)
    pairs = list(wds.WebDataset(urls, shardshuffle=False).compose(stage))
    assert seen(pairs) == trained_on(shards, selection)
    assert all(type(pair["weight"]) is float for pair in pairs)


def test_two_ranks_and_their_workers_share_a_pipeline(shards, urls, selection):
    stage = pickle.loads(pickle.dumps(ncclean.webdataset.select(selection)))
    both = Counter()
    for rank in range(2):
        ours = wds.DataPipeline(
            wds.SimpleShardList(urls),
            lambda source, rank=rank: (url for n, url in enumerate(source) if n % 2 == rank),
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            stage,
        )
        both += seen(DataLoader(ours, batch_size=None, num_workers=2))
    assert both == trained_on(shards, selection)


@pytest.mark.parametrize("workers", [0, 3])
def test_pairs_of_a_rank_are_those_of_finetune(shards, selection, workers):
    for rank in range(2):
        options = {"rank": rank, "world_size": 2}
        pairs = ncclean.webdataset.SelectedPairs(
            str(shards), selection, seed=5, drop_last=False, **options
        )
        pairs.set_epoch(1)
        ours = list(DataLoader(pairs, batch_size=None, num_workers=workers))
        assert seen(ours) == trained_on(shards, selection, **options)
        assert len(ours) == len(pairs)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_pairs_is_taken_up_at_a_batch(shards, selection, workers):
    pairs = ncclean.webdataset.SelectedPairs(str(shards), selection, seed=5)

    def batches():
        loader = DataLoader(pairs, batch_size=16, num_workers=workers)
        return [batch["__key__"] for batch in loader]

    whole = batches()
    pairs.set_epoch(0, batches=5, batch_size=16)
    assert batches() == whole[5:]


def test_small_batches_of_many_workers_are_taken_up_to_the_last(shards):
    pairs = ncclean.webdataset.SelectedPairs(str(shards))  # five of seven workers have one more

    def keys():
        return [pair["__key__"] for pair in DataLoader(pairs, batch_size=None, num_workers=7)]

    whole = keys()
    assert len(set(whole)) == len(whole) == PAIRS
    for seen in (90, 177):
        pairs.set_epoch(0, batches=seen)
        assert keys() == whole[seen:]


def test_images_of_another_size_than_when_scored_are_named_once(tmp_path, caplog):
    photos = tmp_path / "photos"
    photos.mkdir()
    members = {"a.jpg": b"a", "a.txt": b"one", "b.jpg": b"b", "b.txt": b"two"}
    for name, data in members.items():
        (photos / name).write_bytes(data)
    write_tar(tmp_path / "photos.tar", members)
    url = str(tmp_path / "photos.tar")
    rows = [(key, "photos", key, 1.0, "retain") for key in "ab"]
    for size in (1, 2):
        path = selected(tmp_path / "clean.parquet", *rows, image_size=[size] * 2)
        caplog.clear()
        stage = ncclean.webdataset.select(path)
        for pairs in (
            ncclean.webdataset.SelectedPairs(str(photos), path),
            wds.WebDataset(url, shardshuffle=False).compose(stage),
        ):
            assert len([*pairs]) == 2
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 2 * (size - 1)
        assert all("images have another size than when they were scored" in one for one in said)


def test_the_best_captions_need_a_selection(shards):
    with pytest.raises(InputError, match="need a selection"):
        ncclean.webdataset.SelectedPairs(str(shards), captions="best")


def test_workers_that_persist_see_the_next_epoch(shards):
    pairs = ncclean.webdataset.SelectedPairs(str(shards))
    lasting = DataLoader(pairs, batch_size=20, num_workers=2, persistent_workers=True)
    orders = []
    for epoch in range(2):
        pairs.set_epoch(epoch)
        fresh = [batch["__key__"] for batch in DataLoader(pairs, batch_size=20, num_workers=2)]
        assert [batch["__key__"] for batch in lasting] == fresh
        orders.append(fresh)
    assert orders[0] != orders[1]


def test_pairs_of_a_folder_and_of_parquet(tmp_path):
    ncclean.synth(tmp_path / "tars", pairs=24, shard_size=24)
    tables = tmp_path / "rows"
    rows = [
        {"jpg": sample.image, "caption": sample.caption}
        for shard in resolve_sources([str(tmp_path / "tars")])
        for sample in read_samples(shard)
    ]
    tables.mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:10]), tables / "a.parquet")
    pq.write_table(pa.Table.from_pylist(rows[10:]), tables / "b.parquet")
    selection = write_selection(tmp_path / "clean.parquet", tables)
    expected = [
        (row["jpg"], f"mended {n}" if n % 7 == 0 else row["caption"], pytest.approx(n / 100))
        for n, row in enumerate(rows)
        if n % 3
    ]
    pairs = list(ncclean.webdataset.SelectedPairs(str(tables), selection))
    pairs.sort(key=lambda pair: pair["weight"])
    assert [(one["jpg"], one["txt"].decode(), one["weight"]) for one in pairs] == expected

    kept = ncclean.webdataset.SelectedRows(str(tables), selection)
    left = [row for number, row in enumerate(rows) if kept.keep(row, number)]
    weighed = [{**row, **kept.weigh(row, number)} for number, row in enumerate(left)]
    assert kept.total == len(rows)
    assert [(row["jpg"], row["caption"], row["weight"]) for row in weighed] == expected
    with pytest.raises(InputError, match="uid"):
        kept.weigh({"uid": "another"}, 0)


def test_a_pair_that_cannot_be_read_is_replaced_and_said(tmp_path, shards, selection, caplog):
    for path in shards.glob("*.tar"):
        whole = path.read_bytes()
        (tmp_path / path.name).write_bytes(whole[: len(whole) // 2])
    pairs = ncclean.webdataset.SelectedPairs(str(tmp_path), selection)
    assert len(list(pairs)) == len(pairs)
    assert "stood in for" in caplog.text


def test_workers_and_ranks_without_a_readable_pair_show_others(tmp_path, shards):
    for path in shards.glob("*.tar"):
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data if path.stem != "00001" else data[:99])
    everything = write_selection(tmp_path / "all.parquet", shards, kept=lambda row: True)
    for ranks, workers in ((1, 4), (5, 2), (100, 1)):
        for rank in range(ranks) if ranks < 9 else (45, 99):
            pairs = ncclean.webdataset.SelectedPairs(
                str(tmp_path / "*.tar"),
                everything,
                shuffle=False,
                drop_last=False,
                rank=rank,
                world_size=ranks,
            )
            shown = DataLoader(pairs, batch_size=None, num_workers=workers)
            assert len(list(shown)) == len(pairs) == -(-PAIRS // ranks)

    for path in tmp_path.glob("*.tar"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match="none of the selected pairs"):
        list(ncclean.webdataset.SelectedPairs(str(tmp_path / "*.tar"), everything))


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            source = path.with_name("member")
            source.write_bytes(data)
            tar.add(source, name)


def selected(path, *rows, **columns):
    names = ("uid", "shard", "key", "weight", "split")
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)) | columns)
    pq.write_table(table, path)
    return str(path)


def test_captions_of_json_several_captions_and_keys_with_dots(tmp_path):
    members = {
        "a.jpg": b"a", "a.json": json.dumps({"caption": ["one", "two"]}).encode(),
        "shop.de.0001.jpg": b"b", "shop.de.0001.txt": b"three",
        "shop.de.0002.jpg": b"c", "shop.de.0002.txt": b"four",
    }  # fmt: skip
    write_tar(tmp_path / "00000.tar", members)
    path = selected(
        tmp_path / "clean.parquet",
        ("a", "00000", "a", 0.5, "retain"),
        ("a", "00000", "a", 0.25, "retain"),
        ("d", "00000", "shop.de.0002", 1.0, "retain"),
        caption_number=[0, 1, 0],
        caption_rank=[1, 0, 0],
    )

    def pairs(**options):
        stage = ncclean.webdataset.select(path, **options)
        for pair in wds.WebDataset(str(tmp_path / "00000.tar"), shardshuffle=False).compose(stage):
            yield pair["__key__"], pair["jpg"], pair["txt"], pair["weight"]

    assert [*pairs()] == [
        ("a", b"a", b"two", 0.25),
        ("a", b"a", b"one", 0.5),
        ("shop.de.0002", b"c", b"four", 1.0),
    ]
    assert [pair[2] for pair in pairs(captions="best")] == [b"two", b"four"]


def test_lacking_pairs_and_repeated_shards_are_said(tmp_path, caplog):
    members = {"a.jpg": b"a", "a.txt": b"one", "c.jpg": b"c", "c.txt": b"two"}
    write_tar(tmp_path / "00000.tar", members)
    rows = [(key, "00000", key, 1.0, "retain") for key in "ab"]
    stage = ncclean.webdataset.select(selected(tmp_path / "clean.parquet", *rows))
    url = str(tmp_path / "00000.tar")
    with caplog.at_level(logging.WARNING):
        assert len([*wds.WebDataset([url, url], shardshuffle=False).compose(stage)]) == 2
    assert caplog.text.count("1 pair of the selection did not come") == 2


def test_a_sample_with_the_key_of_the_first_does_not_begin_the_shard_anew(tmp_path, caplog):
    data = [
        member
        for number, key in enumerate("abacb")
        for member in ((f"{key}.jpg", hostile.JPEG), (f"{key}.txt", str(number).encode()))
    ]
    (tmp_path / "00000.tar").write_bytes(hostile.tar_bytes(data))
    rows = [(key, "00000", key, 1.0, "retain") for key in "abc"]
    stage = ncclean.webdataset.select(selected(tmp_path / "clean.parquet", *rows))
    url = str(tmp_path / "00000.tar")
    for urls in ([url], [url, url]):
        seen = [one["txt"] for one in wds.WebDataset(urls, shardshuffle=False).compose(stage)]
        assert seen == [b"0", b"1", b"3"] * len(urls)
    assert "did not come" not in caplog.text


def test_samples_of_another_uid_are_not_those_selected(tmp_path, caplog):
    """Another corpus has the same names of shards and keys, or was selected beside this one."""
    members = {}
    for key in "abc":
        fields = json.dumps({"caption": key, "uid": f"u{key}"}).encode()
        members |= {f"{key}.jpg": hostile.JPEG, f"{key}.json": fields}
    write_tar(tmp_path / "00000.tar", members)
    url = str(tmp_path / "00000.tar")

    def selection_of(*uids):
        rows = [(uid, "00000", uid[1], 1.0, "retain") for uid in uids]
        return selected(tmp_path / "clean.parquet", *rows)

    def staged(path):
        stage = ncclean.webdataset.select(path)
        return [one["txt"] for one in wds.WebDataset(url, shardshuffle=False).compose(stage)]

    def whole(path):
        return [one["txt"] for one in ncclean.webdataset.SelectedPairs(url, path)]

    both = selection_of("ua", "xa", "ub", "xc")
    assert staged(both) == [b"a", b"b"]
    assert "2 pairs of the selection did not come" in caplog.text
    assert set(whole(both)) == {b"a", b"b"}
    assert "missing 2" in caplog.text
    others = selection_of("xa", "xc")
    for read in (staged, whole):
        with pytest.raises(InputError, match="sample a has the uid ua in it, and xa there"):
            read(others)


def test_a_selection_of_other_shards_is_refused(tmp_path, urls):
    other = selected(tmp_path / "clean.parquet", ("a", "elsewhere", "a", 1.0, "retain"))
    with pytest.raises(InputError, match="called like elsewhere"):
        list(wds.WebDataset(urls, shardshuffle=False).compose(ncclean.webdataset.select(other)))
    with pytest.raises(InputError, match="does not exist"):
        ncclean.webdataset.select(str(tmp_path / "nowhere.parquet"))


@pytest.mark.parametrize(
    ("url", "names", "expected"),
    [
        ("/data/00001.tar", ["00000", "00001"], "00001"),
        ("s3://bucket/train/00001.tar.gz", ["train/00001", "val/00001"], "train/00001"),
        ("pipe:aws s3 cp s3://bucket/00001.tar -", ["00001"], "00001"),
        ("https://user:secret@host/a/00001.tar?token=abc", ["00001"], "00001"),
        ("00001.tar", ["train/00001"], "train/00001"),
        ("/data/00002.tar", ["00000", "00001"], None),
        ("/data/100001.tar", ["00001"], None),
    ],
)
def test_shards_are_known_by_their_names(url, names, expected):
    assert shard_name(url, names) == expected


def test_a_shard_that_may_be_two_is_refused():
    with pytest.raises(InputError, match="more of their folders"):
        shard_name("00001.tar", ["train/00001", "val/00001"])


def test_decoded_samples_pass_too(urls, selection):
    stage = ncclean.webdataset.select(selection)
    before = wds.WebDataset(urls, shardshuffle=False).compose(stage).decode("torch", partial=True)
    after = wds.WebDataset(urls, shardshuffle=False).decode("torch").compose(stage)
    for one, other in zip(before, after, strict=True):
        assert (one["txt"], one["weight"]) == (other["txt"], other["weight"])
        image = next(name for name in one if isinstance(one[name], torch.Tensor))
        assert torch.equal(one[image], other[image])


def test_rows_keep_their_numbers_behind_a_broken_one(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(hostile.JPEG)
    rows = [f'{{"file_name": "{n}.jpg", "caption": "{n}"}}' for n in range(3)]
    (tmp_path / "pairs.jsonl").write_text("\n".join([rows[0], '{"file_name": ', *rows[1:]]) + "\n")
    (shard,) = resolve_sources([str(tmp_path / "pairs.jsonl")])
    path = selected(tmp_path / "clean.parquet", ("2", shard.name, "2", 0.5, "retain"))
    kept = ncclean.webdataset.SelectedRows(str(tmp_path / "pairs.jsonl"), path)
    assert [number for number in range(kept.total) if kept.keep(None, number)] == [3]
    assert kept.total == 4


def test_a_row_with_captions_is_kept_for_any_of_them(tmp_path):
    rows = [{"key": "a", "image": hostile.JPEG, "captions": ["x", "y"]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    number = {"caption_number": pa.array([1], pa.int16())}
    path = selected(tmp_path / "clean.parquet", ("a", "t", "a", 0.5, "retain"), **number)
    kept = ncclean.webdataset.SelectedRows(str(tmp_path / "t.parquet"), path)
    assert kept.keep(None, 0)


def test_rows_of_an_image_need_not_be_neighbours_and_a_pair_may_be_drawn_twice(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jpg").write_bytes(hostile.JPEG)
    rows = [
        {"file_name": f"{name}.jpg", "title": "x", "caption": f"{name} {number}"}
        for number, name in enumerate("abba")
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pairs = [
        (name, "t", name, weight, "retain")
        for name, weight in zip("aabb", (1, 2, 4, 4), strict=True)
    ]
    path = selected(
        tmp_path / "clean.parquet",
        *pairs,
        caption_number=pa.array([0, 1, 1, 1], pa.int16()),
        caption_rank=pa.array([1, 0, 0, 0], pa.int16()),
        caption=pa.array([None, "new", None, None]),
    )
    kept = ncclean.webdataset.SelectedRows(str(tmp_path / "t.jsonl"), path)
    numbers = [number for number in range(kept.total) if kept.keep(None, number)]
    assert numbers == [0, 2, 3]
    assert [kept.weigh(rows[n], i) for i, n in enumerate(numbers)] == [
        {"weight": 1.0},
        {"weight": 8.0},
        {"weight": 2.0, "caption": "new"},
    ]


def test_the_uids_of_rows_are_those_of_the_scoring(tmp_path):
    """Some rows have none, numbers may be floats, and a column may be called UID."""
    rows = [{"key": key, "image": hostile.JPEG, "caption": "x", "UID": uid}
            for key, uid in (("a", None), ("b", 2.0), ("c", 3.0))]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    (shard,) = resolve_sources([str(tmp_path / "t.parquet")])
    uids = [sample_uid(one.metadata, "t", one.key) for one in read_samples(shard)]
    pairs = [(uid, "t", key, 0.5, "retain") for uid, key in zip(uids, "abc", strict=True)]
    path = selected(tmp_path / "clean.parquet", *pairs)
    kept = ncclean.webdataset.SelectedRows(str(tmp_path / "t.parquet"), path)
    assert [kept.weigh(row, number) for number, row in enumerate(rows)] == [{"weight": 0.5}] * 3
    with pytest.raises(InputError, match=f"uid {uids[2]}, and the selection {uids[1]}"):
        kept.weigh(rows[2], 1)


@pytest.mark.parametrize(
    ("names", "row", "first", "best"),
    [
        (None, {"Captions": ["x", "y"]}, "Captions", ["y"]),
        (["alt", "b.text"], {"b": {"text": "y"}, "alt": "x"}, "alt", "y"),
    ],
)
def test_a_row_has_the_best_of_its_captions(tmp_path, names, row, first, best):
    row = {"key": "a", "image": hostile.JPEG, "title": "x", **row}
    if names is None:
        del row["title"]
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "t.parquet")
    number = {"caption_number": pa.array([1], pa.int16())}
    path = selected(tmp_path / "clean.parquet", ("a", "t", "a", 0.5, "retain"), **number)
    kept = ncclean.webdataset.SelectedRows(str(tmp_path / "t.parquet"), path, caption_key=names)
    assert kept.weigh(row, 0) == {"weight": 0.5, first: best}
