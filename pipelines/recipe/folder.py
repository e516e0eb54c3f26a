"""The folder of a run: a record and a log for each stage, and a lock.

recipe.yaml          the resolved recipe of the last start
versions.json        what it ran with
stages/NAME.json     the record of a stage: begun or done, fingerprint, seconds, results
logs/NAME.log        what the stage said
index.html           the page that links everything
NAME/                what the stage wrote, unless its `out` says otherwise
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.errors import InputError

from .outcome import Outcome
from .references import RUN, written


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A stage that was begun, and once it is `done` what it did.

    `run_id` is another each time the stage begins anew; stages that use this one depend on it.
    `seconds` are those of all starts, interrupted ones not counted.
    """

    stage: str
    command: str
    fingerprint: str
    done: bool = False
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    seconds: float = 0.0
    finished: str | None = None
    figures: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def finish(self, outcome: Outcome, seconds: float, finished: str) -> StageRecord:
        return dataclasses.replace(
            self,
            done=True,
            seconds=round(seconds, 2),
            finished=finished,
            figures=outcome.figures,
            result=outcome.result,
            made=outcome.made,
            failures=dict(outcome.failures),
        )


class RunFolder:
    """Reads and writes the records of a run; every file is whole or not there.

    Records call the folder `${run}`, so that it may be moved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def page(self) -> Path:
        return self.path / "index.html"

    def log_path(self, stage: str) -> Path:
        return self.path / "logs" / f"{stage}.log"

    def record(self, stage: str) -> StageRecord | None:
        """What is known of a stage, None if it was never begun. Raises `InputError`."""
        path = self._record_path(stage)
        try:
            return StageRecord(**json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is no record of a stage: remove it, or use another --out"
                             ) from error  # fmt: skip

    def keep(self, record: StageRecord) -> None:
        """Write the record of a stage."""
        self.write(self._record_path(record.stage), json.dumps(vars(record), indent=1) + "\n")

    def write(self, path: Path, text: str) -> None:
        """Write a file of the run."""
        with published(UPath(path)) as aside:
            aside.write_text(text, encoding="utf-8")

    @contextmanager
    def log(self, stage: str) -> Iterator[TextIO]:
        """The log of a stage, to append to."""
        path = self.log_path(stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as stream:
            yield stream

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second run out; a killed one leaves no lock. Raises `InputError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115  held to the end of the run
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another run is at work in {self.path}") from None
            yield

    def is_there(self, record: StageRecord) -> bool:
        """Whether everything that the stage made is still there."""
        places = map(self.place, record.made)
        return all(stores.ask("read", path, stores.location(path).exists) for path in places)

    def place(self, recorded: str) -> str:
        """The path that a record means."""
        return recorded.replace(written(RUN), str(self.path), 1)

    def recorded(self, path: str) -> str:
        """The path as records have it."""
        inside = path.startswith(f"{self.path}/")
        return path.replace(str(self.path), written(RUN), 1) if inside else path

    def _record_path(self, stage: str) -> Path:
        return self.path / "stages" / f"{stage}.json"
