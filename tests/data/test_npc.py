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
    ("file", "data", "message"),
    [
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


@pytest.mark.parametrize(
    "file", ["train_ids.txt", "train_caps.txt", "0.2_noise_train_caps.txt", "image_name.txt"]
)
def test_a_file_that_changes_in_a_run_fails_its_units(tmp_path, monkeypatch, file):
    place = dataset(tmp_path)
    (place / "image_name.txt").write_text("".join(f"{number}.jpg\n" for number in range(10)))
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


def test_captions_that_change_places_within_their_image_are_clean(tmp_path):
    """They are still of that image; those that come from another one are noisy."""
    place = dataset(tmp_path)
    before = (place / "train_caps.txt").read_text().splitlines()
    after = [before[1], before[0], *before[2:5], before[0]]
    (place / "0.2_noise_train_caps.txt").write_text("\n".join(after) + "\n")
    first, _, last = samples(place / "0.2_noise_train_caps.txt")
    assert first.metadata["is_noisy"] == [False, False]
    assert last.metadata["is_noisy"] == [False, True]
