"""Names of files that others are made from."""

import os

from ncclean.base.atomic import published, remove_leftovers
from ncclean.base.file_names import short_name
from ncclean.base.stores import location
from ncclean.data.shards import ShardRef
from ncclean.exporting.out_layout import safe_path


def test_long_names_stay_apart_and_short_ones_as_they_are():
    assert short_name("a" * 200) == "a" * 200
    long = [short_name("é" * 150 + end) for end in ("", "x", "y")]
    assert len(set(long)) == 3
    assert all(len(name.encode()) <= 200 for name in long)
    assert len(ShardRef("a" * 2000, "", 0, "").part_name) < 230


def test_an_exported_path_that_no_disk_takes_is_one_name_of_its_own():
    assert safe_path("a/" * 499 + "b") == "a/" * 499 + "b"
    long = [safe_path("a/" * 2500 + end) for end in "bc"]
    assert len(set(long)) == 2
    assert all("/" not in path and len(path) < 200 for path in long)


def test_a_file_of_the_longest_name_is_published_and_its_leftovers_removed(tmp_path):
    path = location(str(tmp_path / ("a" * 255)))
    with published(path) as aside:
        aside.write_text("words")
        left = aside.with_name(aside.name.replace(".tmp", "1.tmp"))
        left.touch()
    assert path.read_text() == "words"
    remove_leftovers(path.parent, {path.name})
    assert os.listdir(tmp_path) == ["a" * 255]
