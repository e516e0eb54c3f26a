"""Training state on disk: each file whole or absent, the newest few kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from upath import UPath

from ncclean.atomic import published, remove_leftovers
from ncclean.errors import ResumeError

_NAME = re.compile(r"step_(\d+)\.pt")


@dataclass(frozen=True)
class Position:
    """Where a run stands: the phase, the epoch, the step in it, and the steps of the whole run."""

    phase: int = 0
    epoch: int = 0
    step: int = 0
    total_steps: int = 0


def save_checkpoint(folder: Path, position: Position, state: dict[str, Any], keep: int) -> None:
    """Write `step_N.pt` and remove all but the newest `keep`.

    `state` may hold tensors, numbers, strings and containers of them: it is read back without
    executing anything (`weights_only`).
    """
    with published(UPath(checkpoint_path(folder, position))) as aside:
        torch.save({"position": dict(position.__dict__), **state}, aside)
    remove_leftovers(UPath(folder), _Names())
    for old in _checkpoints(folder)[:-keep]:
        old.unlink()


def checkpoint_path(folder: Path, position: Position) -> Path:
    """Where the checkpoint of a position lies."""
    return folder / f"step_{position.total_steps:08d}.pt"


def load_checkpoint(folder: Path) -> tuple[Position, dict[str, Any]] | None:
    """The newest checkpoint, or None. Raises `ResumeError` if it cannot be read."""
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
