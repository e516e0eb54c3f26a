"""What a function yields in another process, and how that process may end."""

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclean.errors import InputError, ShardError
from ncclean.workers import worker
from ncclean.workers.call import contained, contained_once
from tests.workers.yielding import folder, loaded, may_take, some, where, without_room


def numbers(*arguments):
    return [batch["n"][0].as_py() for batch in contained(some, *arguments)]


def test_items_come_in_order():
    assert numbers(1000, "") == list(range(1000))
    assert numbers(0, "") == []
    assert numbers(3, "noise") == [0, 1, 2]


@pytest.mark.parametrize(
    ("then", "error", "says"),
    [
        ("abort", ShardError, "its reader was ended by SIGABRT"),
        pytest.param(
            "loop",
            ShardError,
            "its reader came to no end within the seconds that it may compute",
            marks=pytest.mark.slow,
        ),
        ("memory", MemoryError, "^$"),
        ("panic", ShardError, "the library panicked"),
        ("refuse", InputError, "not like this"),
    ],
)
def test_what_ends_it_is_raised_after_all_items(then, error, says, capfd):
    found = []
    with pytest.raises(error, match=says):
        found.extend(contained(some, 5, then))
    assert len(found) == 5
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("status", "is_innocent"), [(None, True), (-signal.SIGKILL, True), (-signal.SIGABRT, False)]
)
def test_a_kill_may_be_the_doing_of_another_process(status, is_innocent):
    """The system kills whichever process is large when memory runs out."""
    assert worker.WorkerDied(status).is_innocent == is_innocent


def test_a_limit_of_memory_is_beside_what_a_process_has():
    sizes = (100 << 20, 300 << 20)
    assert list(contained(may_take, 400 << 20, 200 << 20, *sizes)) == [True, False]


def test_modules_prepare_once_for_all_forks():
    assert list(contained(loaded)) == [{False}]


def test_an_array_without_room_to_share_is_said():
    with pytest.raises(ShardError, match="File too large"):
        list(contained(without_room))


PARTS = """
from ncclean.workers.call import contained
from ncclean.workers.fork_server import SERVER
from tests.workers.yielding import parts

SERVER.imports("open_clip")
print(list(contained(parts)))
"""


def test_packages_are_imported_in_parts():
    """In a process of their own: others may have had this one's server import them whole."""
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-c", PARTS]
    result = subprocess.run(words, env=path, capture_output=True, text=True, check=True)
    used, others, rest = ast.literal_eval(result.stdout)
    assert used == ("decode_jpeg", "open_clip.tokenizer")
    assert others == (False, False)
    assert rest == ("torchvision.models", True)


def test_one_that_is_left_early_ends():
    batches = contained(some, 10**9, "")
    next(batches)
    process = batches.gi_frame.f_locals["process"]
    batches.close()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{process._pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{process._pid}")


def test_behind_a_wall_it_is_called_here():
    assert next(contained_once(where)) != os.getpid()
    worker.trust(True)
    try:
        assert next(contained_once(where)) == os.getpid()
    finally:
        worker.trust(False)


def test_a_module_in_the_working_folder_is_not_imported(tmp_path, monkeypatch):
    for name in ("lance", "pyarrow", "json", "torch"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ncclean.workers.call.SERVER", type(worker.SERVER)())
    assert numbers(3, "") == [0, 1, 2]
    assert not (tmp_path / "ran").exists()


def test_a_function_runs_in_the_folder_in_which_it_is_called(tmp_path, monkeypatch):
    """Not in that of the first call, in which the server of the workers was started."""
    assert next(contained(folder)) == os.getcwd()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert next(contained(folder)) == str(tmp_path / name)


def test_an_entry_of_the_path_that_is_no_string_does_not_matter(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.path", [*sys.path, tmp_path])
    monkeypatch.setattr("ncclean.workers.call.SERVER", type(worker.SERVER)())
    assert numbers(3, "") == [0, 1, 2]


# A process within its limits.

LOOP = """
from ncclean.workers.worker import limit_seconds
limit_seconds(0.2)
while True:
    pass
"""


def test_a_process_without_progress_is_ended():
    """Not by who waits for it, which would wait for ever."""
    assert subprocess.run([sys.executable, "-c", LOOP], timeout=60).returncode == -signal.SIGPROF
