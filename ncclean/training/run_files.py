"""The files of a training run: log, checkpoints, and their copy in a store."""

from __future__ import annotations

import contextlib
import contextvars
import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published, remove_leftovers
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.scratch import scratch_folder
from ncclean.errors import ResumeError


class RunFiles:
    """The files of a training run: a local folder, copied to `out` if that is in a store."""

    def __init__(self, out: UPath, local: Path) -> None:
        self.out, self.local = out, local
        self._copied: dict[str, tuple[int, int]] = {}

    @classmethod
    @contextlib.contextmanager
    def open(cls, out: str) -> Iterator[RunFiles]:
        """Yield the files of the run at `out`, fetching them first from a store."""
        location = stores.location(out)
        if not stores.is_url(out):
            yield cls(location, Path(out))
            return
        with scratch_folder() as folder:
            files = cls(location, folder / "run")
            files._fetch()
            yield files

    def recorded(self, *paths: Path) -> list[UPath]:
        """Return the final paths of files of the local folder."""
        return [self.out / path.relative_to(self.local).as_posix() for path in paths]

    def push(self) -> None:
        """Copy new files to the store, and remove from it what the run has removed."""
        if not stores.is_url(self.out):
            return
        present = self._versions()
        for name, version in present.items():
            if self._copied.get(name) != version:
                with published(self.out / name) as aside:
                    shutil.copyfile(self.local / name, aside)
        stores.remove_files(self.out / name for name in self._copied.keys() - present.keys())
        self._copied = present

    def _fetch(self) -> None:
        self.local.mkdir()
        for url in stores.ask("list", self.out, _files_below, self.out):
            name = str(url).removeprefix(f"{self.out}/")
            if name.partition("/")[0] == WORKING_FOLDER or ".." in name.split("/"):
                continue  # the second is not a name of the run, and would lead elsewhere
            location = self.local / name
            location.parent.mkdir(parents=True, exist_ok=True)
            stores.ask("read", url, url.fs.get_file, url.path, str(location))
        self._copied = self._versions()

    def _versions(self) -> dict[str, tuple[int, int]]:
        """Return size and time of the folder's files; those being written are hidden."""
        return {
            path.relative_to(self.local).as_posix(): (status.st_size, status.st_mtime_ns)
            for path in self.local.rglob("*")
            if path.is_file() and not path.name.startswith(".")
            for status in [path.stat()]
        }


def _files_below(folder: UPath) -> list[UPath]:
    names = folder.fs.find(folder.path)
    return [folder / name.removeprefix(folder.path.rstrip("/")).lstrip("/") for name in names]


_NAME = re.compile(r"step_(\d+)\.pt")


@dataclass(frozen=True)
class Position:
    """A position in a training run: its phase, the epoch, the step in it, and the steps in all."""

    phase: int = 0
    epoch: int = 0
    step: int = 0
    total_steps: int = 0


def save_checkpoint(folder: Path, position: Position, state: dict[str, Any], keep: int) -> None:
    """Write the checkpoint `step_N.pt` and delete all but the newest `keep`.

    `state` may hold tensors, numbers, strings and containers of them: it is read without executing
    anything (`weights_only`).
    """
    with published(UPath(checkpoint_path(folder, position))) as aside:
        torch.save({"position": dict(position.__dict__), **state}, aside)
    remove_leftovers(UPath(folder), _Names())
    for old in _checkpoints(folder)[:-keep]:
        old.unlink()


class CheckpointWriter:
    """Writes checkpoints in the background: `save` returns when the training state is copied.

    Until it is written, the copy takes as much CPU memory as the state. One is written at a time.
    Its errors are raised by the next call of any method but `close`.
    """

    def __init__(
        self, folder: Path, keep: int, on_saved: Callable[[], None] = lambda: None
    ) -> None:
        """Set up the writer; `on_saved` is called after each checkpoint, in the writing thread."""
        self._folder, self._keep, self._on_saved = folder, keep, on_saved
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ncclean-checkpoint")
        self._written: Future[None] | None = None

    def path(self, position: Position) -> Path:
        """Return the path of the checkpoint of a training position."""
        return checkpoint_path(self._folder, position)

    def save(self, position: Position, state: dict[str, Any]) -> None:
        """Copy the training state, and start writing it as a checkpoint in the background."""
        self.finish()
        context = contextvars.copy_context()  # which files are reported, and to whom
        self._written = self._thread.submit(context.run, self._save, position, _copied(state))

    def _save(self, position: Position, state: dict[str, Any]) -> None:
        save_checkpoint(self._folder, position, state, self._keep)
        self._on_saved()

    def raise_if_failed(self) -> None:
        """Raise the error of the last checkpoint, if writing it failed."""
        if self._written is not None and self._written.done():
            self.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is written; raise its error."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def close(self) -> None:
        """Wait until the last checkpoint is written, without raising its error."""
        self._thread.shutdown()


def _copied(state: Any) -> Any:
    """Return the same containers with copies of the tensors, on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_copied(value) for value in state)
    return state


def checkpoint_path(folder: Path, position: Position) -> Path:
    """Return the path of the checkpoint of a training position."""
    return folder / f"step_{position.total_steps:08d}.pt"


def load_checkpoint(folder: Path) -> tuple[Position, dict[str, Any]] | None:
    """Load the newest checkpoint, None without one. Raises `ResumeError` if it cannot be read."""
    checkpoints = _checkpoints(folder)
    if not checkpoints:
        return None
    newest = checkpoints[-1]
    try:
        state: dict[str, Any] = torch.load(newest, map_location="cpu", weights_only=True)
        return Position(**state.pop("position")), state
    except Exception as error:
        raise ResumeError(
            f"{newest} cannot be read ({_first_line(error)}); remove it to go on from the one "
            "before"
        ) from error


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest last."""
    steps = {path: name for path in folder.glob("*.pt") if (name := _NAME.fullmatch(path.name))}
    return sorted(steps, key=lambda path: int(steps[path].group(1)))


class _Names:
    """The names of all checkpoints."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class RunLog:
    """The log of a training run: a JSON line for each report, without those after the checkpoint.

    On resuming, lines of steps that will be repeated are dropped.
    """

    def __init__(self, folder: Path, from_step: int, tensorboard: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "results.jsonl"
        self._drop_after(from_step)
        self._stream = open(self._path, "a", encoding="utf-8")  # noqa: SIM115  for the run's life
        self._board: Any = None
        if tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=from_step + 1)

    def files(self) -> list[Path]:
        """Return the files of the training log, also of an earlier start of the run."""
        return [self._path, *sorted((self._path.parent / "tensorboard").glob("events.out.*"))]

    def write(self, step: int, facts: dict[str, Any]) -> None:
        """Log the numbers of a training step."""
        self._stream.write(json.dumps({"step": step, **facts}) + "\n")
        self._stream.flush()
        if self._board is not None:
            for name, value in facts.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._stream.close()
        if self._board is not None:
            self._board.close()

    def _drop_after(self, step: int) -> None:
        if not self._path.exists():
            return
        lines = []
        for line in self._path.read_text("utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # cut by a crash
                break
            if record["step"] <= step:
                lines.append(line)
        self._path.write_text("".join(line + "\n" for line in lines), "utf-8")


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read the logged steps of a training run, in order."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text("utf-8").splitlines()]
