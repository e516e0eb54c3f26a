"""The folder in an output that holds everything but data: records, statistics, unfinished parts."""

from __future__ import annotations

from upath import UPath

from ncclean.file_names import WORKING_FOLDER
from ncclean.storage.log import exists


def work_folder(out: UPath, record: str, earlier: UPath) -> UPath:
    """Return the working folder of the output folder `out`.

    It used to be in plain view, at `earlier`: a run whose record is there stays there.
    """
    return earlier if exists(earlier / record) else out / WORKING_FOLDER
