"""Checkpoints on disk: whole or absent, the newest few, and read without executing anything."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from ncclean.errors import InputError
from ncclean.training import run_files as checkpoint
from ncclean.training.run_files import CheckpointWriter, Position, load_checkpoint, save_checkpoint


def save(folder, step, keep=2, **state):
    position = Position(phase=1, epoch=2, step=3, total_steps=step)
    save_checkpoint(folder, position, {"weights": torch.full((3,), float(step)), **state}, keep)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_checkpoint_comes_back_as_it_was(tmp_path):
    save(tmp_path, 9, nested={"a": [1, 2.5, "b"], "nothing": None})
    save(tmp_path, 10)
    save(tmp_path, 11, nested={"a": [1, 2.5, "b"], "nothing": None})
    position, state = load_checkpoint(tmp_path)
    assert position == Position(phase=1, epoch=2, step=3, total_steps=11)
    assert torch.equal(state["weights"], torch.full((3,), 11.0))
    assert state["nested"] == {"a": [1, 2.5, "b"], "nothing": None}


def test_no_checkpoint_is_no_error(tmp_path):
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "not there") is None


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_few_stay(tmp_path, keep):
    """By the number of the step, not by its digits: 100,000,000 comes after 99,999,999."""
    steps = [1, 2, 10, 99_999_999, 100_000_000]
    for step in steps:
        save(tmp_path, step, keep)
    assert names(tmp_path) == sorted(f"step_{step:08d}.pt" for step in steps[-keep:])
    position, _ = load_checkpoint(tmp_path)
    assert position.total_steps == 100_000_000


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "step_best.pt").write_text("mine")
    for step in (1, 2, 3):
        save(tmp_path, step, keep=1)
    assert names(tmp_path) == ["step_00000003.pt", "step_best.pt"]
    assert load_checkpoint(tmp_path)[0].total_steps == 3


def test_a_failed_write_leaves_the_one_before(tmp_path, monkeypatch, refused):
    save(tmp_path, 1)

    def write_half(state, file):
        with open(file, "wb") as stream:
            stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", write_half)
    refused(save, tmp_path, 2, keep=1)
    assert names(tmp_path) == ["step_00000001.pt"]
    assert load_checkpoint(tmp_path)[0].total_steps == 1


def test_a_process_killed_while_it_writes_leaves_the_one_before(tmp_path):
    save(tmp_path, 1)
    code = (
        "import os, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from ncclean.training.run_files import Position, save_checkpoint\n"
        "def half(state, file):\n"
        "    Path(file).write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "torch.save = half\n"
        "save_checkpoint(Path(sys.argv[1]), Position(total_steps=2), {}, 1)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env={**os.environ})
    assert killed.returncode == -signal.SIGKILL
    assert load_checkpoint(tmp_path)[0].total_steps == 1


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None], ids=["empty", "text", "cut"])
def test_an_unreadable_newest_one_is_named(tmp_path, content, refused):
    """It is not silently passed over: the steps since the one before would be lost unnoticed."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    newest = tmp_path / "step_00000002.pt"
    newest.write_bytes(newest.read_bytes()[:200] if content is None else content)
    refused(load_checkpoint, tmp_path)
    newest.unlink()
    assert load_checkpoint(tmp_path)[0].total_steps == 1


@pytest.mark.parametrize("state", [{}, {"position": {"phase": 1, "planet": 2}}])
def test_a_file_of_something_else_is_a_resume_error(tmp_path, state, refused):
    torch.save(state, tmp_path / "step_00000001.pt")
    refused(load_checkpoint, tmp_path)


def test_nothing_in_a_checkpoint_is_executed(tmp_path, refused):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save({"position": Position().__dict__, "evil": Evil()}, tmp_path / "step_00000001.pt")
    refused(load_checkpoint, tmp_path)
    assert not (tmp_path / "owned").exists()


def test_what_a_killed_process_left_is_removed_with_the_next_checkpoint(tmp_path):
    (tmp_path / ".step_00000001.pt.7123456789.tmp").write_text("half")
    (tmp_path / ".mine.pt.7.tmp").write_text("mine")
    save_checkpoint(tmp_path, Position(total_steps=2), {"x": 1}, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".mine.pt.7.tmp",
        "step_00000002.pt",
    ]


@pytest.fixture
def gate(monkeypatch):
    """Checkpoints are written when it is set."""
    opened = threading.Event()
    write = save_checkpoint

    def wait_and_write(*arguments):
        assert opened.wait(10)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "save_checkpoint", wait_and_write)
    return opened


def test_a_checkpoint_holds_the_state_of_its_step(tmp_path, gate):
    """Training goes on while it is written."""
    writer = CheckpointWriter(tmp_path, keep=2)
    weights, moments = torch.zeros(3), [torch.zeros(2)]
    state = {"model": {"weights": weights}, "optimizer": {"state": moments, "lr": 0.1}}
    writer.save(Position(total_steps=1), state)
    weights += 1
    moments[0] += 1
    writer.raise_if_failed()
    assert load_checkpoint(tmp_path) is None
    gate.set()
    writer.finish()
    position, found = load_checkpoint(tmp_path)
    assert position.total_steps == 1
    assert found["model"]["weights"].tolist() == [0, 0, 0]
    assert found["optimizer"]["state"][0].tolist() == [0, 0]
    assert found["optimizer"]["lr"] == 0.1
    writer.save(Position(total_steps=2), state)
    writer.close()
    assert load_checkpoint(tmp_path)[0].total_steps == 2


def test_one_checkpoint_is_written_at_a_time(tmp_path, gate):
    """`save` waits for the one before, so that at most one copy of the state is held."""
    writer = CheckpointWriter(tmp_path, keep=2)
    writer.save(Position(total_steps=1), {})
    threading.Timer(0.2, gate.set).start()
    writer.save(Position(total_steps=2), {})
    assert "step_00000001.pt" in names(tmp_path)
    writer.close()
    assert names(tmp_path) == ["step_00000001.pt", "step_00000002.pt"]


def test_a_write_that_failed_is_raised_by_the_next_call(tmp_path, monkeypatch, refused):
    def full(*arguments):
        raise InputError("the disk is full")

    monkeypatch.setattr(checkpoint, "save_checkpoint", full)
    writer = CheckpointWriter(tmp_path, keep=2)
    for after in (writer.finish, lambda: writer.save(Position(total_steps=2), {})):
        writer.save(Position(total_steps=1), {})
        refused(after)
        writer.finish()
    writer.close()
