"""Where a run may remove files: in its output and its working folder, and through no link."""

import pytest
from upath import UPath

from ncclean.storage.made_files import MadeFiles, OwnPlace


@pytest.fixture
def place(tmp_path):
    """Of a run that writes a table, with its working folder beside it."""
    (tmp_path / "s.parquet.work").mkdir()
    return OwnPlace(UPath(tmp_path / "s.parquet"), UPath(tmp_path / "s.parquet.work"))


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("s.parquet", True),
        ("s.parquet.work/parts/a.parquet", True),
        ("s.parquet2", False),
        ("other.parquet", False),
        ("s.parquet.work/../other.parquet", False),
        ("", False),
    ],
)
def test_the_output_and_what_lies_in_the_working_folder(place, tmp_path, name, is_own):
    assert place.holds(UPath(f"{tmp_path}/{name}")) == is_own


def test_nothing_behind_a_link(place, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "s.parquet.work" / "parts").symlink_to(tmp_path / "mine")
    assert not place.holds(UPath(tmp_path / "s.parquet.work" / "parts" / "a.parquet"))


def test_a_list_names_files_below_the_output_alone(tmp_path):
    files = MadeFiles(UPath(tmp_path))
    files.add([".", "a", "b/c", f"{tmp_path}/d", "/etc/passwd", "s3://bucket/e"])
    assert list(files.paths()) == [UPath(tmp_path), UPath(tmp_path / "a"), UPath(tmp_path / "b/c")]


def test_names_are_listed_once(tmp_path):
    files = MadeFiles(UPath(tmp_path / "out"))
    paths = [UPath(tmp_path / "out" / "a"), UPath(tmp_path / "out" / "b"), UPath(tmp_path / "c")]
    assert files.new_names(paths) == ["a", "b"]
    files.add(["a"])
    assert files.new_names(paths) == ["b"]
