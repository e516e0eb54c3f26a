"""Folders of class folders: class names as captions, classes mixed in units."""

import pytest

from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, find_sets
from ncclean.data.class_file import read_class_file
from ncclean.data.images import class_folders
from ncclean.data.images.class_folders import class_caption
from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_sources
from ncclean.errors import InputError, ShardError
from tests import hostile
from tests.data.test_benchmark_sets import write_set

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


def test_units_mix_the_classes_and_follow_the_files(classes, monkeypatch):
    monkeypatch.setattr("ncclean.data.images.layout.ImageLayout.unit_rows", 30)
    units = resolve(classes)
    assert [unit.rows for unit in units] == [(0, 30), (30, 60), (60, 81)]
    keys = [sample.key for unit in units for sample in read_samples(unit)]
    assert len(set(keys)) == 81
    assert len({unit.name for unit in units}) == 3
    (classes / "train" / "dog" / "0.jpg").write_bytes(b"another image")
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


# CyCLIP's classes.py: read, and never run.


def read(tmp_path, text):
    path = tmp_path / "classes.py"
    path.write_text(text)
    return read_class_file(str(path))


def test_the_dictionary_that_cyclip_evaluates(tmp_path):
    found = read(
        tmp_path,
        '{\n    "classes": ["tench", "kite (bird of prey)", "tench"],\n'
        '    "superclasses": [["tench"], ["kite"], 3],\n'
        '    "templates": [lambda s: f"a bad photo of a {s}.", lambda c: f"{c}, a " '
        'f"type of {c}.",'
        ' lambda s: f"itap of {{my}} {s}."]\n}',
    )
    assert found.classes == ["tench", "kite (bird of prey)", "tench"]
    assert found.templates == [
        "a bad photo of a {c}.", "{c}, a type of {c}.", "itap of {my} {c}."
    ]  # fmt: skip


def test_assignments_and_format_strings(tmp_path):
    found = read(
        tmp_path,
        '"""Pets."""\nclasses = ("cat", "dog")\ntemplates = ["a {}.", "the {c}", "{0}!", '
        'lambda s: "my {}".format(s)]\n',
    )
    assert found.classes == ["cat", "dog"]
    assert found.templates == ["a {c}.", "the {c}", "{c}!", "my {c}"]


SET = '{{"classes": ["a"], "templates": [{}]}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('__import__("os").system("true")', "line 1: neither a dictionary"),
        ('import os\nclasses = ["a"]', "line 1: neither a dictionary"),
        ('classes = open("x").read()\ntemplates = ["{}"]', "line 1: not a literal"),
        ('{"classes": [x for x in "ab"], "templates": ["{}"]}', "not a literal"),
        ('{"classes": ["a"], "other": print(1), "templates": ["{}"]}', "not a literal"),
        ('{"classes": ["a", 2], "templates": ["{}"]}', "not a text"),
        ('{"classes": [], "templates": ["{}"]}', "not a list with something in it"),
        ('{"classes": "ab", "templates": ["{}"]}', "not a list"),
        ('{"classes": ["a"]}', "has no 'templates'"),
        ("", "has no 'classes'"),
        ('{**{"classes": ["a"]}}', "a key that is not a text"),
        (SET.format('lambda s: print(s) or f"{s}"'), "without a place for the name"),
        (SET.format('lambda s: f"{print(s)}"'), "holds more than {s}"),
        (SET.format('lambda s: f"{s.__class__}"'), "holds more than {s}"),
        (SET.format('lambda s: f"{s!r}"'), "holds more than {s}"),
        (SET.format('lambda s: f"{s:>99999999}"'), "holds more than {s}"),
        (SET.format('lambda s: f"{t}"'), "holds more than {s}"),
        (SET.format('lambda s, t=open("x"): f"{s}"'), "takes one argument"),
        (SET.format('lambda *s: f"{s}"'), "takes one argument"),
        (SET.format('lambda s: open("{}").format(s)'), "not a text"),
        (SET.format('lambda s: "{}".join(s)'), "a call that is not"),
        (SET.format('lambda s: "{}".format(t)'), "a call that is not"),
        (SET.format('lambda s: f"the {{c}} {s}"'), "as text"),
        (SET.format('"a photo"'), "without a place for the name"),
        (SET.format('"{0.__class__}"'), "a prompt with {0.__class__}"),
        (SET.format('"{:>999999}"'), "a prompt with {}"),
        (SET.format('"{"'), "is not Python"),
        ("{", "is not Python"),
        ("\0", "is not Python"),
        ("[" * 500, "is not Python|nested too deeply"),
        ('{"classes": ' + "-" * 60_000 + "1}", "not a literal|nested too deeply|is not Python"),
    ],
)
def test_anything_else_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    assert "classes.py" in str(caught.value)


# Sets in CyCLIP's layout, beside those of clip_benchmark.

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
