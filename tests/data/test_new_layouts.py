"""Layouts that people bring: each gives the same pairs, and says what is wrong."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.errors import InputError, ShardError
from tests import object_store
from tests.data.image_layouts import PEOPLES, read, statuses, write_csv

PAIRS = [
    (f"{number:05d}", b"\xff\xd8\xff image %d" % number + bytes(60), f"caption {number}")
    for number in range(40)
]


@pytest.mark.parametrize("layout", PEOPLES)
def test_every_layout_gives_the_same_pairs(layout, tmp_path):
    samples, errors = read(PEOPLES[layout](PAIRS, tmp_path / "c"))
    assert not errors
    assert [sample.error for sample in samples if sample.error] == []
    found = sorted((sample.image, sample.caption) for sample in samples)
    assert found == sorted((image, caption) for _, image, caption in PAIRS)


def test_a_json_is_found_in_its_folder(tmp_path):
    place = PEOPLES["LLaVA"](PAIRS, tmp_path / "c")
    samples, errors = read(place.parent)
    assert not errors
    assert [sample.image for sample in samples] == [image for _, image, _ in PAIRS]
    place.write_text(json.dumps([{"path": "images/00000.jpg", "sha": "1"}]))  # of anything else
    assert len(read(place.parent)[0]) == 40


def test_layouts_in_an_object_store(tmp_path):
    with object_store.s3():
        for layout in ("COCO", "Arrow", "jsonl.gz", "hive", "a.jpg.txt"):
            name = layout.replace(".", "-")
            folder = PEOPLES[layout](PAIRS[:8], tmp_path / name)
            for inner in [folder, *filter(Path.is_dir, folder.rglob("*"))]:
                for file in filter(Path.is_file, inner.iterdir()):
                    place = file.relative_to(tmp_path).as_posix()
                    object_store.filesystem().put_file(str(file), f"corpus/{place}")
            samples, errors = read(f"s3://corpus/{name}")
            assert not errors
            found = sorted((sample.image, sample.caption) for sample in samples)
            assert found == sorted((image, caption) for _, image, caption in PAIRS[:8]), layout


def test_values_of_folders_are_columns(tmp_path):
    samples, _ = read(PEOPLES["hive"](PAIRS, tmp_path / "c"))
    assert sorted(sample.metadata["lang"] for sample in samples) == 20 * ["de"] + 20 * ["en"]


def test_cocos_captions_come_in_the_order_of_the_file(tmp_path):
    folder = PEOPLES["COCO"](PAIRS, tmp_path / "c")
    place = folder / "annotations" / "captions_train2017.json"
    whole = json.loads(place.read_text())
    whole["annotations"] += [{"image_id": 3, "id": 7, "caption": "another"}, {"image_id": 4}, 7]
    del whole["annotations"][-4]  # that of image 0
    place.write_text(json.dumps(dict(reversed(whole.items()))))  # captions before the images
    samples, errors = read(place)
    assert not errors
    assert [one.text for one in samples[3].captions] == ["caption 3", "another"]
    assert [one.text for one in samples[4].captions] == ["caption 4", None]  # counted
    assert samples[0].status.value == "caption_missing"
    assert statuses(samples[1:]) == 39 * ["ok"]


def test_captions_of_coco_without_their_image_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("ncclean.data.images.layout.ImageLayout.unit_rows", 10)
    folder = PEOPLES["COCO"](PAIRS, tmp_path / "c")
    place = folder / "annotations" / "captions_train2017.json"
    whole = json.loads(place.read_text())
    del whole["images"][5:7]
    place.write_text(json.dumps(whole))
    counts = []
    for shard in resolve_sources([str(place)]):
        reader = read_samples(shard)
        assert len(list(reader)) in (8, 10)
        counts.append(dict(reader.further.captions))
    assert counts == [{"of no image": 2}, {}, {}, {}]


def test_a_file_of_coco_that_is_cut_is_an_error(tmp_path):
    folder = PEOPLES["COCO"](PAIRS, tmp_path / "c")
    place = folder / "annotations" / "captions_train2017.json"
    text = place.read_text()
    place.write_text(text[:-100])
    samples, errors = read(place)
    assert len(samples) == 40
    assert "ends in the middle" in errors[0] or "is broken" in errors[0]
    place.write_text(text.replace('{"id": 7, ', '{"id": 7}], '))
    samples, errors = read(place)
    assert errors
    assert "behind its list `images`" in errors[0]


def test_a_long_list_of_captions_that_is_cut_is_an_error(tmp_path, monkeypatch):
    """Too long to be looked at behind the list of images, it is read as far as it goes."""
    monkeypatch.setattr("ncclean.data.images.json_list._LONGEST_REST", 10)
    monkeypatch.setattr("ncclean.data.images.json_list._BLOCK", 100)
    folder = PEOPLES["COCO"](PAIRS, tmp_path / "c")
    place = folder / "annotations" / "captions_train2017.json"
    assert read(place)[1] == []
    place.write_text(place.read_text()[:-100])
    samples, [error] = read(place)
    assert "its list `annotations`" in error or "is broken" in error
    assert statuses(samples)[-1] == "ok"
    assert "caption_missing" in statuses(samples)


@pytest.mark.parametrize("layout", ["COCO", "Arrow"])
def test_splits_that_names_tell(tmp_path, layout, refused):
    folder = PEOPLES[layout](PAIRS, tmp_path / "c")
    assert len(read(folder, split=["train"])[0]) == (40 if layout == "COCO" else 20)
    refused(read, folder, split=["val"])


@pytest.mark.parametrize("second", ["data", "val"])
def test_several_lists_of_images_are_not_passed_over(tmp_path, second, monkeypatch):
    place = PEOPLES["LLaVA"](PAIRS, tmp_path / "c")
    entries = json.loads(place.read_text())
    place.write_text(json.dumps({"info": [], "train": entries[:20], second: entries[20:]}))
    with pytest.raises(InputError, match=f"several lists of images, `train`, `{second}`"):
        read(place)
    # One that lies behind what is looked at when it is planned.
    monkeypatch.setattr("ncclean.data.images.json_list._BEGINNING", 500)
    samples, [error] = read(place)
    assert len(samples) == 20
    assert f"has another list, `{second}`, which is not read" in error


def test_a_beginning_of_quotes_alone_takes_no_time(tmp_path, refused):
    (tmp_path / "t.json").write_text('{"a' + 500_000 * '\\"')
    refused(read, tmp_path / "t.json")


@pytest.mark.parametrize("has_state", [True, False])
def test_what_datasets_kept_beside_its_data_is_not_read(tmp_path, has_state):
    """Results of `map` are the same pairs once more; an earlier `save_to_disk` may be of others."""
    folder = PEOPLES["Arrow"](PAIRS, tmp_path / "c") / "train"
    data = folder / "data-00000-of-00001.arrow"
    kept = ["cache-0123456789abcdef.arrow", "cache-ab_00000_of_00002.arrow"]
    stated = (folder / "state.json").read_text()
    for name in [*kept, *(["data-00000-of-00002.arrow"] if has_state else [])]:
        shutil.copy(data, folder / name)
    if not has_state:
        (folder / "state.json").unlink()
    assert len(read(folder)[0]) == 20
    assert len(read(folder / kept[0])[0]) == 20
    if has_state:
        (folder / "state.json").write_text('{"_data_files": 5}')  # tells nothing
        assert len(read(folder)[0]) == 40
        (folder / "state.json").write_text(stated)
        data.unlink()
        with pytest.raises(InputError, match=f"names {data.name}, which is not there"):
            read(folder)


def test_units_of_arrow_have_the_rows_of_whole_batches(tmp_path, monkeypatch):
    folder = PEOPLES["Arrow"](PAIRS, tmp_path / "c")
    whole = [(sample.image, sample.caption) for sample in read(folder)[0]]
    monkeypatch.setattr("ncclean.data.images.layout.ImageLayout.unit_rows", 10)
    shards = resolve_sources([str(folder)])
    assert [shard.rows for shard in shards] == [(0, 14), (14, 20), (0, 14), (14, 20)]
    assert [(one.image, one.caption) for one in read(folder)[0]] == whole


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_any_flipped_byte_of_arrow_keeps_the_rows(tmp_path, kind):
    table = pa.table({"image": [one[1] for one in PAIRS], "text": [one[2] for one in PAIRS]})
    place = tmp_path / "t.arrow"
    new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with new(place, table.schema) as file:
        file.write_table(table, max_chunksize=10)
    [shard] = resolve_sources([str(place)])
    good = place.read_bytes()
    for at in range(0, len(good), 131):
        place.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        samples, failed = [], False
        try:
            for sample in read_samples(shard):
                samples.append(sample)
        except ShardError:
            failed = True
        assert len(samples) == 40 or (failed and len(samples) == 0)


def test_a_text_that_unpacks_to_far_too_much_is_refused(tmp_path):
    begin = b"image,caption\na.jpg,a\n"
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(begin + (b"x" * (1 << 20) + b"\n") * 200))
    samples, errors = read(tmp_path / "t.csv.gz")
    assert len(samples) < 10
    assert "unpacks to more than" in errors[0]


def test_a_text_that_is_cut_short_is_an_error(tmp_path):
    folder = PEOPLES["jsonl.gz"](PAIRS, tmp_path / "c")
    place = folder / "t.jsonl.gz"
    place.write_bytes(place.read_bytes()[:-40])
    _, errors = read(place)
    assert "is broken as gzip" in errors[0]


@pytest.mark.parametrize("layout", ["table", "folder"])
def test_links_are_followed_below_the_image_root(tmp_path, layout):
    """As the cache of the Hugging Face Hub has them."""
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs" / "abc").write_bytes(PAIRS[0][1])
    (snapshot / "a.jpg").symlink_to("../../blobs/abc")
    if layout == "table":
        write_csv(snapshot / "t.csv", [{"file_name": "a.jpg", "text": "a"}])
    else:
        (snapshot / "a.txt").write_text("a")
    [sample] = read(snapshot)[0]
    assert "is a link to" in sample.error
    assert "--image-root names a folder that holds both" in sample.error
    [sample] = read(snapshot, image_root=str(tmp_path))[0]
    assert sample.image == PAIRS[0][1]
    outside = tmp_path.parent / f"{tmp_path.name}-secret.jpg"
    outside.write_bytes(b"secret")
    (snapshot / "a.jpg").unlink()
    os.symlink(outside, snapshot / "a.jpg")
    [sample] = read(snapshot, image_root=str(tmp_path))[0]
    assert sample.status.value == "image_missing"
