"""Files that are whole or not there, whatever happens while they are written."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from upath import UPath

from ncclean.base import atomic
from ncclean.base.atomic import published, remove_leftovers
from ncclean.errors import InputError


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path):
    if request.param == "disk":
        yield UPath(tmp_path)
        return
    place = UPath(f"memory://{tmp_path.name}")
    yield place
    place.fs.store.clear()


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_file_appears_when_it_is_whole(folder):
    target = folder / "inside" / "a.txt"
    with published(target) as aside:
        aside.write_text("half")
        assert not target.exists()
        aside.write_text("whole")
    assert target.read_text() == "whole"
    assert names(folder / "inside") == ["a.txt"]


def test_a_failure_leaves_what_was_there(folder):
    target = folder / "a.txt"
    with published(target) as aside:
        aside.write_text("before")
    with contextlib.suppress(ZeroDivisionError), published(target) as aside:
        aside.write_text("after")
        raise ZeroDivisionError
    assert target.read_text() == "before"
    assert names(folder) == ["a.txt"]


@pytest.mark.parametrize(
    ("error", "message"),
    [(OSError(28, "No space left on device"), "no space left"), (PermissionError(13, "no"), "no")],
)
def test_a_disk_that_refuses_is_one_sentence(tmp_path, error, message):
    target = UPath(tmp_path / "a.txt")
    with pytest.raises(InputError, match=message), published(target):
        raise error
    assert names(tmp_path) == []


def test_temporary_names_are_hidden_from_globs(tmp_path):
    with published(UPath(tmp_path / "a.parquet")) as aside:
        aside.write_text("half")
        assert list(tmp_path.glob("*.parquet")) == []
        assert aside.name.startswith(".")


def test_writers_of_one_file_with_one_process_number_are_apart(tmp_path):
    """A task that is run again while the first one, on another node, is still at work."""
    target = UPath(tmp_path / "a.tar")
    with published(target) as first:
        first.write_text("the")
        with published(target) as second:
            second.write_text("the whole")
        first.write_text("the whole")
    assert first != second
    assert target.read_text() == "the whole"
    assert names(tmp_path) == ["a.tar"]


def test_what_a_killed_process_leaves_is_removed_and_nothing_else(tmp_path):
    code = (
        "import os, signal; from upath import UPath; from ncclean.base.atomic import published\n"
        f"with published(UPath({str(tmp_path / 'a.tar')!r})) as aside:\n"
        "    aside.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    mine = [".b.tar.1.tmp", ".a.tar.tmp", ".a.tar.x.tmp", "a.tar.1.tmp", "a.tar"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    remove_leftovers(UPath(tmp_path), {"a.tar", "c.tar"})
    assert not leftover.exists()
    assert names(tmp_path) == sorted(mine)


def test_no_leftovers_where_there_is_no_folder(tmp_path):
    remove_leftovers(UPath(tmp_path / "none"), {"a"})
    remove_leftovers(UPath("memory://none"), {"a"})
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_one_sentence_whoever_writes(tmp_path, monkeypatch, refused):
    """torch and safetensors raise errors of their own."""

    def fails(error):
        with published(UPath(tmp_path / "a.pt")):
            raise error

    with pytest.raises(RuntimeError, match="unexpected pos"):
        fails(RuntimeError("unexpected pos"))
    monkeypatch.setattr(atomic, "is_full", lambda folder: True)
    refused(fails, RuntimeError("unexpected pos"))
    refused(fails, InputError("another reason"))
    assert names(tmp_path) == []
