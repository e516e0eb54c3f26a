"""Training state on disk: whole or not there, the newest few kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from upath import UPath

from ncclean.atomic import published
from ncclean.errors import ResumeError

_NAME = re.compile(r"step_(\d+)\.pt$")


@dataclass(frozen=True)
class Progress:
    """Where a run is: the phase, the epoch and the step in it, and the steps of the whole run."""

    phase: int = 0
    epoch: int = 0
    step: int = 0
    total_steps: int = 0


def save_checkpoint(folder: Path, progress: Progress, state: dict[str, Any], keep: int) -> None:
    """Write `step_N.pt` and remove all but the newest `keep`.

    `state` may hold tensors, numbers, strings and containers of them: it is read back without
    executing anything (`weights_only`).
    """
    with published(UPath(checkpoint_path(folder, progress))) as aside:
        torch.save({"progress": dict(progress.__dict__), **state}, aside)
    for old in _checkpoints(folder)[:-keep]:
        old.unlink()


def checkpoint_path(folder: Path, progress: Progress) -> Path:
    """Where the checkpoint of a position lies."""
    return folder / f"step_{progress.total_steps:08d}.pt"


def load_checkpoint(folder: Path) -> tuple[Progress, dict[str, Any]] | None:
    """The newest checkpoint, or None. Raises `ResumeError` if it cannot be read."""
    found = _checkpoints(folder)
    if not found:
        return None
    try:
        state: dict[str, Any] = torch.load(found[-1], map_location="cpu", weights_only=True)
        return Progress(**state.pop("progress")), state
    except Exception as error:
        raise ResumeError(
            f"{found[-1]} cannot be read ({str(error).splitlines()[0]}); remove it to go on from "
            "the one before"
        ) from error


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*.pt") if _NAME.search(path.name))
