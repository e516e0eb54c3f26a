"""Where a run may remove files: in its output and its working folder, and through no link."""

import pytest
from upath import UPath

from ncclean.storage.made_files import OwnPlace


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
