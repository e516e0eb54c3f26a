"""NPC's layout: captions and image numbers by line, and what noise files say about truth."""

import pytest

from ncclean.data.images.registry import layout_of
from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError


def dataset(folder, below="annotations/scan_split", *, repeats=1, name="{}.jpg"):
    """Three images with two captions each to train on, one to test; the second is missing."""
    place = folder / below
    place.mkdir(parents=True, exist_ok=True)
    (folder / "images").mkdir(exist_ok=True)
    for number in (7, 9, 4):
        (folder / "images" / name.format(number)).write_bytes(f"image {number}".encode())
    (place / "train_ids.txt").write_text("".join(f"{number}\n" * repeats for number in (7, 8, 9)))
    captions = [f"caption {number} {which}" for number in (7, 8, 9) for which in "ab"]
    (place / "train_caps.txt").write_text("\n".join(captions) + "\n")
    captions[0], captions[4] = captions[4], captions[0]
    (place / "0.2_noise_train_caps.txt").write_text("\n".join(captions) + "\n")
    (place / "dev_ids.txt").write_text("4\n" * 2)
    (place / "dev_caps.txt").write_text("caption 4 a\n\n")
    return place


def samples(source, **options):
    shards = resolve_sources([str(source)], options=SourceOptions(**options))
    return [sample for shard in shards for sample in read_samples(shard)]


@pytest.mark.parametrize("below", ["annotations/scan_split", "annotations", ""])
@pytest.mark.parametrize("repeats", [1, 2])
def test_a_dataset(tmp_path, below, repeats, refused):
    dataset(tmp_path, below, repeats=repeats)
    found = samples(tmp_path, split=["train"])
    assert [sample.key for sample in found] == ["7", "8", "9"]
    assert [sample.status.value for sample in found] == ["ok", "image_missing", "ok"]
    assert found[0].image == b"image 7"
    assert [caption.text for caption in found[2].captions] == ["caption 9 a", "caption 9 b"]
    assert found[0].metadata["imgid"] == "7"
    assert "is_noisy" not in found[0].metadata
    (val,) = samples(tmp_path, split=["val"])
    assert [caption.status.value for caption in val.captions] == ["ok", "caption_missing"]
    assert len(samples(tmp_path)) == 4
    refused(samples, tmp_path, split=["test"])


def test_captions_with_noise_say_which_they_are(tmp_path):
    place = dataset(tmp_path)
    found = samples(place / "0.2_noise_train_caps.txt")
    assert [caption.text for caption in found[0].captions] == ["caption 9 a", "caption 7 b"]
    assert [sample.metadata["is_noisy"] for sample in found] == [
        [True, False], [False, False], [True, False],
    ]  # fmt: skip
    assert found[0].metadata["noise_kind"] == ["noise_file", None]


def test_captions_of_one_image_in_another_order_are_clean(tmp_path):
    place = dataset(tmp_path)
    lines = (place / "train_caps.txt").read_text().splitlines()
    lines[0], lines[1], lines[5] = lines[1], lines[0], lines[2]
    (place / "0.2_noise_train_caps.txt").write_text("\n".join(lines) + "\n")
    found = samples(place / "0.2_noise_train_caps.txt")
    assert [sample.metadata["is_noisy"] for sample in found] == [
        [False, False], [False, False], [False, True],
    ]  # fmt: skip


def test_an_image_of_too_many_captions_holds_no_more_than_one_may_have(tmp_path):
    place = dataset(tmp_path)
    (place / "train_ids.txt").write_text("7\n" * 2000 + "9\n")
    (place / "train_caps.txt").write_text("one\n" * 2000 + "of nine\n")
    [shard] = resolve_sources([str(place / "train_caps.txt")])
    (row, last) = layout_of(shard).rows(shard)
    assert len(row["captions"]) == 1001
    assert last["captions"] == ["of nine"]
    assert samples(tmp_path, split=["train"])[0].status.value == "caption_too_large"


@pytest.mark.parametrize(
    "name", ["COCO_2014_{:0>12}.jpg", "COCO_val2014_{:0>12}.jpg", "{:0>12}.jpg", "n{}.png"]
)
def test_names_of_images(tmp_path, name):
    place = dataset(tmp_path, name=name)
    if name[0] == "n":
        (place / "image_name.txt").write_text("".join(name.format(n) + "\n" for n in range(10)))
    statuses = [sample.status.value for sample in samples(tmp_path, split=["train"])]
    assert statuses == ["ok", "image_missing", "ok"]


def test_an_image_may_not_lie_outside(tmp_path):
    place = dataset(tmp_path)
    (tmp_path / "secret").write_bytes(b"x")
    (place / "train_ids.txt").write_text("../secret\n7\n/etc/passwd\n")
    found = samples(tmp_path, split=["train"])
    assert [sample.status.value for sample in found] == ["image_missing", "ok", "image_missing"]
    assert "not below" in found[0].error


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("train_ids.txt", b"7\n8\n9\n1\n", "6 captions and train_ids.txt 4 images"),
        ("train_ids.txt", b"", "0 images"),
        ("train_caps.txt", b"\xff\xfea\0", "UTF-16"),
        ("train_caps.txt", b"x" * (2 << 20), "characters"),
    ],
)
def test_files_that_do_not_go_together(tmp_path, file, data, message):
    place = dataset(tmp_path)
    (place / file).write_bytes(data)
    (shard,) = resolve_sources([str(place / "train_caps.txt")])
    with pytest.raises(ShardError, match=message):
        list(read_samples(shard))


def test_units_and_what_makes_them_new(tmp_path, monkeypatch):
    place = dataset(tmp_path)
    monkeypatch.setattr("ncclean.data.images.layout.ImageLayout.unit_rows", 2)
    source = str(place / "0.2_noise_train_caps.txt")
    first, second = resolve_sources([source])
    assert [sample.key for sample in read_samples(second)] == ["9"]
    assert (first.rows, second.rows) == ((0, 2), (2, 3))
    (place / "train_caps.txt").write_text("x\n" * 6)
    assert resolve_sources([source])[0].version != first.version


@pytest.mark.parametrize("file", ["train_ids.txt", "train_caps.txt", "0.2_noise_train_caps.txt"])
def test_a_file_that_changes_in_a_run_fails_its_units(tmp_path, monkeypatch, file):
    place = dataset(tmp_path)
    monkeypatch.setattr("ncclean.data.images.layout.ImageLayout.unit_rows", 2)
    first, second = resolve_sources([str(place / "0.2_noise_train_caps.txt")])
    assert len(list(read_samples(first))) == 2
    (place / file).write_text((place / file).read_text().replace("9", "10"))
    with pytest.raises(ShardError, match="have changed since the run began"):
        list(read_samples(second))


def test_a_list_of_names_is_bounded(tmp_path, monkeypatch):
    place = dataset(tmp_path)
    (place / "image_name.txt").write_text("7.jpg\n" * 20)
    monkeypatch.setattr("ncclean.data.images.npc._MOST_NAMES", 50)
    (shard,) = resolve_sources([str(place / "train_caps.txt")])
    with pytest.raises(ShardError, match="more than 50 characters"):
        list(read_samples(shard))
