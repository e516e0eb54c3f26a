"""Training state on disk: each file whole or absent, the newest few kept."""

from __future__ import annotations

import contextvars
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from upath import UPath

from ncclean.base.atomic import published, remove_leftovers
from ncclean.errors import ResumeError

_NAME = re.compile(r"step_(\d+)\.pt")


@dataclass(frozen=True)
class Position:
    """The position of a run: its phase, epoch, step in it, and the steps of the whole run."""

    phase: int = 0
    epoch: int = 0
    step: int = 0
    total_steps: int = 0


def save_checkpoint(folder: Path, position: Position, state: dict[str, Any], keep: int) -> None:
    """Write the checkpoint `step_N.pt` and delete all but the newest `keep`.

    `state` may hold tensors, numbers, strings and containers of them: it is read back without
    executing anything (`weights_only`).
    """
    with published(UPath(checkpoint_path(folder, position))) as aside:
        torch.save({"position": dict(position.__dict__), **state}, aside)
    remove_leftovers(UPath(folder), _Names())
    for old in _checkpoints(folder)[:-keep]:
        old.unlink()


class CheckpointWriter:
    """Writes checkpoints while the training goes on: `save` returns when the state is copied.

    The copy takes as much memory of the CPU as the state until it is written. One is written at a
    time. What goes wrong is raised by the next call of any method but `close`.
    """

    def __init__(
        self, folder: Path, keep: int, on_saved: Callable[[], None] = lambda: None
    ) -> None:
        """`on_saved` is called after each checkpoint, in the thread that has written it."""
        self._folder, self._keep, self._on_saved = folder, keep, on_saved
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ncclean-checkpoint")
        self._written: Future[None] | None = None

    def path(self, position: Position) -> Path:
        """Path of the checkpoint of a training position."""
        return checkpoint_path(self._folder, position)

    def save(self, position: Position, state: dict[str, Any]) -> None:
        """Copy the training state, and start to write it as a checkpoint in the background."""
        self.finish()
        context = contextvars.copy_context()  # which files are reported, and to whom
        self._written = self._thread.submit(context.run, self._save, position, _copied(state))

    def _save(self, position: Position, state: dict[str, Any]) -> None:
        save_checkpoint(self._folder, position, state, self._keep)
        self._on_saved()

    def raise_if_failed(self) -> None:
        """Raise the error of the last checkpoint, if writing it has failed."""
        if self._written is not None and self._written.done():
            self.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is written; raises its error."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def close(self) -> None:
        """Wait until the last checkpoint is written; its error is not raised."""
        self._thread.shutdown()


def _copied(state: Any) -> Any:
    """The same containers with copies of the tensors, on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_copied(value) for value in state)
    return state


def checkpoint_path(folder: Path, position: Position) -> Path:
    """Path of the checkpoint of a training position."""
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
