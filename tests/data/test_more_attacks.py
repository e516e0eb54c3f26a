"""More attacks give the rows that they must, in bounded time and memory."""

import pytest

from tests.attacked import check
from tests.more_attacks import MORE_ATTACKS

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


def marks(name):
    return [pytest.mark.slow] if name in SLOW else []


@pytest.mark.parametrize(
    "attack", [pytest.param(one, id=one.name, marks=marks(one.name)) for one in MORE_ATTACKS]
)
def test_every_row_has_its_status(tmp_path, attack):
    attack.write(tmp_path)
    check(attack, tmp_path)


def test_names_are_those_of_attacks():
    names = [attack.name for attack in MORE_ATTACKS]
    assert len(set(names)) == len(names)
    assert set(names) >= {*SLOW}
