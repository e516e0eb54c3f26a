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
# Many seconds to write or to read. Texts of 100 MB: test_hostile_tables.py and those of LONG.
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
    "Parquet with a text of 100 MB nobody asks for",
    "Parquet with a caption of 100 MB for all rows",
    "Parquet whose footer says nothing of 200 MB",
    "Arrow with one text of 100 MB for all rows",
    "Parquet with lists of captions of 100 MB",
    "csv with a million columns",
    "csv in gzip with 512 MB of nothing",
)
# Some seconds, or memory that others have used up.
LONG = (
    "xz that announces a dictionary of 1.5 GB",
    "json that fills the memory",
    "many captions for each of many images",
    "two million captions in 35 KB",
    "1,200 nested folders",
    "PNG with a compressed text of 256 MB",
    "animated WebP of 12 frames of 4 million pixels",
    "GIF of 81 million pixels and 100,000 frames",
    "Arrow with 3 GB of zeros nobody asks for",
    "Arrow with views of one text of 100 MB",
)
SHORT = [name for name in BY_NAME if name not in {*SLOW, *LONG}]
TOGETHER = 12
GROUPS = [tuple(SHORT[begin : begin + TOGETHER]) for begin in range(0, len(SHORT), TOGETHER)]


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)  # too deep for shutil


@pytest.mark.parametrize(
    "names",
    [
        *GROUPS,
        *((name,) for name in LONG),
        *(pytest.param((name,), marks=pytest.mark.slow) for name in SLOW),
    ],
    ids=lambda names: names[0] + (" and others" if len(names) > 1 else ""),
)
def test_every_row_has_its_status(folder, names):
    check([BY_NAME[name] for name in names], folder)


def test_names_are_those_of_attacks():
    assert len(BY_NAME) == len(ATTACKS) + len(TABLE_ATTACKS) + len(MORE_ATTACKS) - 1
    assert BY_NAME.keys() >= {*SLOW, *LONG}
    assert not any("/" in name for name in BY_NAME)  # which check takes apart there
