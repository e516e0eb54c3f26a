"""The log of a training run: `results.jsonl` and TensorBoard."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class RunLog:
    """Appends a JSON line for each report; on resuming, lines after the checkpoint are dropped."""

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
        """Files of the training log, also of an earlier start of the run."""
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
