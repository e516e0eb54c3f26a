"""The working folder of a search for causes: whole files, listed in the record of the run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.scratch import scratch_folder
from ncclean.storage.run_record import RUN, RunRecord

COMMAND = "explain"


@dataclass
class Work:
    """The working folder; `record` lists the files in it, None in a folder that will not stay."""

    folder: Path
    record: RunRecord | None

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield where to write a file, which is then whole or not there."""
        place = UPath(self.folder / name)
        if self.record is not None:
            self.record.made(place)
        with published(place) as aside:
            yield aside

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()


@contextlib.contextmanager
def working_folder(out: UPath, identity: Mapping[str, Any], overwrite: bool) -> Iterator[Work]:
    """Open the working folder, and remove it when the body ends without an error.

    That of an output in a store is a temporary folder, and is not resumed.
    """
    if stores.is_url(out):
        with scratch_folder() as folder:
            yield Work(folder, None)
        return
    folder = Path(str(out) + ".work")
    place = UPath(folder / RUN)
    if overwrite:
        RunRecord.clear(place, COMMAND)
    with RunRecord.open(place, COMMAND, dict(identity)) as record:
        yield Work(folder, record)
    RunRecord.clear(place, COMMAND, says=False)
    with contextlib.suppress(OSError):  # a file of someone else's is in it
        os.rmdir(folder)
