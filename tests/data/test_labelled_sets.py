"""Sets in CyCLIP's layout, beside those of clip_benchmark."""

import pytest

from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, find_sets
from ncclean.errors import InputError
from tests import hostile
from tests.data.test_benchmark_sets import write_set
from tests.test_docs import DOCS, code_blocks

CLASSES = {"classnames.txt": "cat\ndog\n", "zeroshot_classification_templates.txt": "a {c}.\n"}


def write_classes(folder):
    for name, text in CLASSES.items():
        (folder / name).write_text(text)


def write_labelled(folder, count=3, classes=True):
    (folder / "images").mkdir(parents=True)
    rows = ["image,label"]
    for number in range(count):
        hostile.photo(seed=number).save(folder / "images" / f"{number}.png")
        rows.append(f"images/{number}.png,{number % 2}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    if classes:
        write_classes(folder)
    return folder


def test_one_folder_and_a_folder_for_each_split(tmp_path):
    write_labelled(tmp_path / "sketch")
    write_labelled(tmp_path / "imagenet" / "validation")
    write_classes(tmp_path / "imagenet")
    write_labelled(tmp_path / "pets" / "test", classes=False)
    write_labelled(tmp_path / "pets" / "train", 5, classes=False)
    write_classes(tmp_path / "pets")
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
    write_classes(tmp_path / "pets" / "test")
    names = [one.name for one in find_sets(both, CLASSIFICATION)]
    assert names == ["imagenet-validation", "pets-test"]


def test_what_is_missing(tmp_path):
    write_labelled(tmp_path / "bare", classes=False)
    (bare,) = find_sets([str(tmp_path / "bare")], CLASSIFICATION)
    with pytest.raises(InputError, match=r"bare has no classnames\.txt with the names"):
        bare.classnames()
    with pytest.raises(InputError, match="has no folder train"):
        find_sets([str(tmp_path / "bare")], CLASSIFICATION, ("train", "test"))
    with pytest.raises(InputError, match="is a classification set"):
        find_sets([str(tmp_path / "bare")], RETRIEVAL)
    with pytest.raises(InputError, match="has no folder train"):
        find_sets([str(tmp_path / "bare")], CLASSIFICATION)[0].shards("train")


def test_the_example_of_the_page_reads_cyclips_classes(tmp_path, monkeypatch):
    (example,) = [
        block for block in code_blocks(DOCS / "evaluation.md", "python") if "classes.py" in block
    ]
    write_labelled(tmp_path / "sketch", classes=False)
    prompts = '[lambda c: f"a bad photo of a {c}.", lambda c: f"itap of {{my}} {c}."]'
    (tmp_path / "sketch" / "classes.py").write_text(
        f'{{"classes": ["tench", "kite (bird)"], "templates": {prompts}}}'
    )
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    (sketch,) = find_sets(["sketch"], CLASSIFICATION)
    assert sketch.classnames() == ["tench", "kite (bird)"]
    assert sketch.templates() == ["a bad photo of a {c}.", "itap of {my} {c}."]
