"""Every attack gives the rows that it must, in bounded time and memory."""

import subprocess

import pytest

from tests.attacked import check
from tests.attacks import ATTACKS
from tests.table_attacks import TABLE_ATTACKS

SLOW = ("six images of 88 million pixels",)  # to be decoded by more than one thread: test_gate.py


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)  # too deep for shutil


@pytest.mark.parametrize(
    "attack",
    [one for one in (*ATTACKS, *TABLE_ATTACKS) if one.name not in SLOW],
    ids=lambda attack: attack.name,
)
def test_every_row_has_its_status(folder, attack):
    attack.write(folder)
    check(attack, folder)
