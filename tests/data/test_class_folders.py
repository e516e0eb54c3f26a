"""Folders of class folders: class names as captions, classes mixed in units."""

import pytest

from ncclean.data.fingerprints import changed_shards
from ncclean.data.images import class_folders
from ncclean.data.images.class_folders import class_caption
from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError

TEMPLATE = "a photo of a {}"


@pytest.fixture
def classes(tmp_path):
    for folder in ("train/001.Black_footed_Albatross", "train/dog"):
        (tmp_path / "set" / folder).mkdir(parents=True)
        for number in range(40):
            (tmp_path / "set" / folder / f"{number}.jpg").write_bytes(f"{folder}{number}".encode())
    (tmp_path / "set" / "train" / "dog" / "0.txt").write_text("not meant")
    (tmp_path / "set" / "alone.png").write_bytes(b"no class")
    return tmp_path / "set"


def resolve(place, template=TEMPLATE):
    return resolve_sources([str(place)], options=SourceOptions(class_template=template))


def test_class_names_are_captions(classes):
    (shard,) = resolve(classes)
    samples = list(read_samples(shard))
    assert len(samples) == 81
    by_key = {sample.key: sample for sample in samples}
    assert by_key["train/dog/0"].caption == "a photo of a dog"
    assert by_key["train/dog/0"].image == b"train/dog0"
    bird = by_key["train/001.Black_footed_Albatross/7"]
    assert bird.caption == "a photo of a Black footed Albatross"
    assert bird.metadata["class"] == "001.Black_footed_Albatross"
    assert by_key["alone"].status.value == "caption_missing"
    # A block of pairs of one class could tell nothing.
    first = [sample.metadata["class"] for sample in samples[:20]]
    assert 4 < sum(name == "dog" for name in first) < 16


def test_another_template_makes_other_captions_than_the_scored_ones(classes):
    scored, again, other = (
        {one.name: one.fingerprint for one in resolve(classes, template)}
        for template in (TEMPLATE, TEMPLATE, "{}, outdoors")
    )
    assert not changed_shards(scored, again)
    assert changed_shards(scored, other) == ["set"]


def test_units_mix_the_classes_and_follow_the_files(classes, monkeypatch):
    monkeypatch.setattr("ncclean.data.images.layout.ImageLayout.unit_rows", 30)
    units = resolve(classes)
    assert [unit.rows for unit in units] == [(0, 30), (30, 60), (60, 81)]
    keys = [sample.key for unit in units for sample in read_samples(unit)]
    assert len(set(keys)) == 81
    assert len({unit.name for unit in units}) == 3
    (classes / "train" / "dog" / "0.jpg").write_bytes(b"train/cat0")  # of the same size
    class_folders._listed.cache_clear()  # of a worker
    with pytest.raises(ShardError, match="since the run began"):  # rows would be lost or doubled
        list(read_samples(units[0]))
    assert resolve(classes)[0].version != units[0].version


@pytest.mark.parametrize(
    ("template", "folder", "caption"),
    [
        ("a {c}, a kind of bird", "12.Gull", "a Gull, a kind of bird"),
        ("{}", "n01440764", "n01440764"),
        ("{} and {}", "a__b", "a b and a b"),
        ("{} {0.__class__}", r"\1", r"\1 {0.__class__}"),
    ],
)
def test_templates(template, folder, caption):
    assert class_caption(template, folder) == caption


def test_what_is_refused(classes, tmp_path, refused):
    refused(resolve, classes, "a photo")
    (tmp_path / "empty").mkdir()
    refused(resolve, tmp_path / "empty")
    refused(resolve, classes / "alone.png")
