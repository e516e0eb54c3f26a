"""Sets in CyCLIP's layout, beside those of clip_benchmark."""

import pytest

from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, find_sets
from ncclean.errors import InputError
from tests import hostile
from tests.data.test_benchmark_sets import write_set

CLASSES = '{"classes": ["cat", "dog"], "templates": [lambda s: f"a {s}."]}'


def write_labelled(folder, count=3, classes=True):
    (folder / "images").mkdir(parents=True)
    rows = ["image,label"]
    for number in range(count):
        hostile.photo(seed=number).save(folder / "images" / f"{number}.png")
        rows.append(f"images/{number}.png,{number % 2}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    if classes:
        (folder / "classes.py").write_text(CLASSES)
    return folder


def test_one_folder_and_a_folder_for_each_split(tmp_path):
    write_labelled(tmp_path / "sketch")
    write_labelled(tmp_path / "imagenet" / "validation")
    write_labelled(tmp_path / "pets" / "test", classes=False)
    write_labelled(tmp_path / "pets" / "train", 5, classes=False)
    (tmp_path / "pets" / "classes.py").write_text(CLASSES)
    write_set(tmp_path / "cars")
    sets = find_sets([str(tmp_path)], CLASSIFICATION)
    assert [one.name for one in sets] == ["cars", "imagenet", "pets", "sketch"]
    assert [one.label for one in sets] == ["cls", "label", "label", "label"]
    assert [one.has("train") for one in sets] == [False, False, True, False]
    for one in sets[1:]:
        assert (one.classnames(), one.templates()) == (["cat", "dog"], ["a {c}."])
        assert [shard.rows for shard in one.shards("test")] == [(0, 3)]
    (pets,) = find_sets([str(tmp_path)], CLASSIFICATION, ("train", "test"))
    assert [shard.rows for shard in pets.shards("train")] == [(0, 5)]
    both = [str(tmp_path / "imagenet" / "validation"), str(tmp_path / "pets" / "test")]
    (tmp_path / "pets" / "test" / "classes.py").write_text(CLASSES)
    names = [one.name for one in find_sets(both, CLASSIFICATION)]
    assert names == ["imagenet-validation", "pets-test"]


def test_what_is_missing(tmp_path, refused):
    write_labelled(tmp_path / "bare", classes=False)
    refused(find_sets, [str(tmp_path / "bare")], CLASSIFICATION)
    (tmp_path / "bare" / "classes.py").write_text(CLASSES)
    refused(find_sets, [str(tmp_path / "bare")], CLASSIFICATION, ("train", "test"))
    refused(find_sets, [str(tmp_path / "bare")], RETRIEVAL)
    with pytest.raises(InputError, match="has no folder train"):
        find_sets([str(tmp_path / "bare")], CLASSIFICATION)[0].shards("train")
