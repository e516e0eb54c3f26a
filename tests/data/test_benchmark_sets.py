"""Evaluation sets on disk: what is found, and one sentence for each thing that is missing."""

import re

import pytest

from ncclean.data.benchmark_sets import CLASSIFICATION, RETRIEVAL, find_sets
from ncclean.errors import InputError
from tests import hostile


def write_set(folder, splits=("test",), shards=1, kind=None):
    for split in splits:
        (folder / split).mkdir(parents=True)
        for number in range(shards):
            data = hostile.tar_bytes([("a.jpg", hostile.JPEG), ("a.cls", b"0")])
            (folder / split / f"{number}.tar").write_bytes(data)
        (folder / split / "nshards.txt").write_text(f"{shards}\n")
    (folder / "classnames.txt").write_text("cat\ndog\n\n")
    (folder / "zeroshot_classification_templates.txt").write_text("a {c}\n")
    if kind is not None:
        (folder / "dataset_type.txt").write_text(f"{kind}\n")
    return folder


@pytest.mark.parametrize(
    "text", ["cat\ndog\x85s\nfox\n", "\ufeffcat\r\ndog\x85s\r\nfox\r\n\r\n", "cat\rdog\x85s\rfox"]
)
def test_classes_are_numbered_by_lines(tmp_path, text):
    """Not by characters that only Unicode takes for the end of one."""
    folder = write_set(tmp_path / "s")
    (folder / "classnames.txt").write_bytes(text.encode())
    (one,) = find_sets([str(folder)], CLASSIFICATION)
    assert one.classnames() == ["cat", "dog\x85s", "fox"]


def refused(*arguments, **options):
    with pytest.raises(InputError) as caught:
        find_sets(*arguments, **options)
    return str(caught.value)


def test_a_set_or_a_folder_of_sets(tmp_path):
    write_set(tmp_path / "pets", splits=("test", "train"))
    write_set(tmp_path / "cars")
    write_set(tmp_path / "coco", kind="retrieval")
    (tmp_path / "notes").mkdir()
    names = lambda *arguments: [one.name for one in find_sets(*arguments)]  # noqa: E731
    assert names([str(tmp_path)], CLASSIFICATION) == ["cars", "pets"]
    assert names([str(tmp_path)], RETRIEVAL) == ["coco"]
    assert names([f"{tmp_path}/pets/"], CLASSIFICATION) == ["pets"]
    # What has no `train` is passed over in a folder, and refused by name.
    assert names([str(tmp_path)], CLASSIFICATION, ("train", "test")) == ["pets"]
    assert "no folder train" in refused([str(tmp_path / "cars")], CLASSIFICATION, ("train",))


def test_what_is_read(tmp_path):
    (one,) = find_sets([str(write_set(tmp_path / "s", shards=12))], CLASSIFICATION)
    assert one.classnames() == ["cat", "dog"]
    assert one.templates() == ["a {c}"]
    names = [shard.url.rsplit("/", 1)[-1] for shard in one.shards("test")]
    assert names == [f"{number}.tar" for number in range(12)]
    (one.folder / "test" / "nshards.txt").unlink()
    assert len(one.shards("test")) == 12


def test_what_is_not_there(tmp_path):
    write_set(tmp_path / "a" / "same")
    write_set(tmp_path / "b" / "same")
    coco = write_set(tmp_path / "coco", kind="retrieval")
    odd = write_set(tmp_path / "odd", kind="multilabel")
    (tmp_path / "empty").mkdir()
    assert "does not exist" in refused([str(tmp_path / "no")], CLASSIFICATION)
    assert "is not a retrieval set" in refused([str(tmp_path / "empty")], RETRIEVAL)
    assert "use `evaluate retrieval`" in refused([str(coco)], CLASSIFICATION)
    assert "must say classification or retrieval, not 'multilabel'" in refused(
        [str(odd)], CLASSIFICATION
    )
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert "two sets are called same" in refused(both, CLASSIFICATION)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("classnames.txt", None, "has no classnames.txt with the names of its classes"),
        ("classnames.txt", "\n \n", "is empty"),
        ("classnames.txt", "cat\n\ndog\n", "classnames.txt, line 2 is blank"),
        ("classnames.txt", "\ncat\ndog\n", "line 1 is blank"),
        ("classnames.txt", b"\xff\xfe", "is not UTF-8"),
        ("zeroshot_classification_templates.txt", None, "has no zeroshot_classification_templates"),
        ("zeroshot_classification_templates.txt", "a {c}\na cat\n", "prompt without {c}: 'a cat'"),
        ("test/nshards.txt", "3", "test/1.tar is missing"),
        ("test/nshards.txt", "many", "must hold the number of shards, not 'many'"),
        ("test/nshards.txt", "0", "must hold the number of shards"),
    ],
)
def test_broken_sets_are_named(tmp_path, file, content, message):
    folder = write_set(tmp_path / "s")
    (folder / file).unlink()
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / file).write_bytes(raw)
    (one,) = find_sets([str(folder)], CLASSIFICATION)
    with pytest.raises(InputError, match=re.escape(message)):  # noqa: PT012
        one.classnames()
        one.templates()
        one.shards("test")
