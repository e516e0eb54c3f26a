"""Every attack gives the rows that it must, in bounded time and memory."""

import subprocess

import pytest

from tests.attacked import check
from tests.attacks import ATTACKS
from tests.more_attacks import MORE_ATTACKS
from tests.table_attacks import TABLE_ATTACKS

BY_NAME = {attack.name: attack for attack in (*ATTACKS, *TABLE_ATTACKS, *MORE_ATTACKS)}
# To be decoded by more than one thread: test_read_ahead.py.
del BY_NAME["six images of 88 million pixels"]
# Seconds to write or to read.
SLOW = (
    "GIF of 10,000 frames",
    "JPEG of 64 million pixels with 1,000 scans",
    "Parquet with 100,000 columns",
    "Parquet with a list of 50 million nulls",
    "Arrow with two billion rows of nothing",
    "WebP of 268 million pixels",
    "AVIF that announces 81 million pixels",
    "100,000 folders in a tar",
    "Parquet with a text of 100 MB in structs",
    "Parquet with a text of 100 MB in lists",
    "Parquet with a text of 100 MB in maps",
    "Parquet with captions that share 100 MB",
    "csv with a million columns",
    "csv in gzip with 512 MB of nothing",
)


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)  # too deep for shutil


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in BY_NAME]
)
def test_every_row_has_its_status(folder, name):
    BY_NAME[name].write(folder)
    check(BY_NAME[name], folder)


def test_names_are_those_of_attacks():
    assert len(BY_NAME) == len(ATTACKS) + len(TABLE_ATTACKS) + len(MORE_ATTACKS) - 1
    assert BY_NAME.keys() >= {*SLOW}
