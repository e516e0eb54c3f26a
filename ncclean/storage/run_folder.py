"""Write files of a run into a folder that may hold others: whole, listed, and moved into place."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published, raise_if_full
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.json_values import finite
from ncclean.base.output_mark import mark
from ncclean.storage.differences import differences
from ncclean.storage.run_record import RUN, RunRecord

_ASIDE = ".ncclean-writing-"


def open_record(
    out: Path | str, command: str, run: dict[str, Any], *, overwrite: bool
) -> RunRecord:
    """Open the run record of a command that owns its output folder.

    `run` is the identity of the run: its version, options and inputs. Raises `ResumeError` for the
    folder of another run, `InputError` for one with files that belong to no run.
    """

    folder = stores.location(str(out))

    def anything() -> UPath | None:
        files = (one.name for one in stores.listing(folder) if one.name != WORKING_FOLDER)
        name = next(files, None)
        if name is not None:
            return folder / name
        return folder if folder.is_file() else None

    labels = {f"inputs.{name}": "the input" for name in run.get("inputs", {})}
    compare = partial(differences, labels=labels)
    return RunRecord.open(
        folder / WORKING_FOLDER / RUN,
        command,
        run,
        overwrite=overwrite,
        base=folder,
        taken=anything,
        compare=compare,
    )


def finished(record: RunRecord) -> dict[str, Any] | None:
    """Return the last entry of a finished run's record; None if the run was interrupted.

    A run with a missing file counts as interrupted.
    """
    files = list(record.listed())
    if len(stores.present_files(files)) < len(files):
        return None
    return next((entry for entry in record.entries if entry["kind"] == "done"), None)


@contextlib.contextmanager
def written_aside(folder: Path, made: Callable[..., None]) -> Iterator[Path]:
    """Yield an empty folder to write to; at the end, move its files into `folder`.

    `made` is called with their paths before. JSON files come last: a visible description implies
    that what it describes exists.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_ASIDE}*"):  # left by a killed run
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=folder) as name:
        aside = Path(name)
        try:
            yield aside
        except Exception as error:
            raise_if_full(aside, error)
            raise
        files = [path.relative_to(aside) for path in aside.rglob("*") if path.is_file()]
        files.sort(key=lambda file: (file.suffix == ".json", file))
        made(*(folder / file for file in files))
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(aside / file, folder / file)


def write_json(path: str, values: Mapping[str, Any], command: str) -> str:
    """Write a command's result as JSON, without NaN and infinity; return the path.

    The file is whole or absent.
    """
    marked = {"made_by": mark(command), **finite(dict(values))}
    with published(stores.location(path)) as aside:
        aside.write_text(json.dumps(marked, indent=1) + "\n")
    return path
