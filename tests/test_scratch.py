"""Temporary folders, and what killed processes left of theirs."""

import errno
import fcntl
import subprocess
import sys
import tempfile

import pytest

from ncclean.base.scratch import scratch_folder

_KILLED = """
import os, signal
from ncclean.base.scratch import scratch_folder

with scratch_folder() as folder:
    (folder / "shard.tar").write_bytes(b"x")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_is_removed_at_the_end(place):
    with scratch_folder() as folder, scratch_folder() as second:
        (folder / "file").write_text("x")
        assert {*place.iterdir()} == {folder, second}
    assert not [*place.iterdir()]


def test_what_a_killed_process_left_is_removed_by_the_next_one(place):
    done = subprocess.run([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE, text=True)
    (left,) = place.iterdir()
    assert str(left) == done.stdout.strip()
    (place / "others").mkdir()
    with scratch_folder() as folder:
        assert {*place.iterdir()} == {folder, place / "others"}


def test_where_there_are_no_locks_a_folder_is_there_nevertheless(place, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with scratch_folder() as folder, scratch_folder():
        assert folder.is_dir()
    assert not [*place.iterdir()]
