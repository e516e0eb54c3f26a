"""The Parquet files that a path, folder, glob or URL of a score table stands for."""

from __future__ import annotations

import glob
from collections.abc import Iterable

from upath import UPath

from ncclean import stores
from ncclean.errors import InputError
from ncclean.file_names import WORKING_FOLDER
from ncclean.regular_files import why_missing
from ncclean.text_files import LARGEST_TEXT

FINALIZING = "finalizing"  # in the working folder


def table_files(paths: Iterable[str]) -> list[str]:
    """Expand score files, folders, globs and URLs into Parquet files.

    Raises `InputError` for a path that holds none.
    """
    files: list[str] = []
    for path in paths:
        where = stores.location(path)
        is_pattern = any(char in path for char in "*?[")
        if is_pattern and stores.is_url(path):
            listed = stores.ask("list", path, where.fs.glob, where.path)
            matches = sorted(where.fs.unstrip_protocol(name) for name in listed)
        elif taken := stores.ask("read", path, tables_at, where):
            matches = [str(file) for file in taken]
        else:
            matches = sorted(glob.glob(path, recursive=True)) if is_pattern else []
        if not matches:
            raise InputError(_missing(where))
        files += matches
    if not files:
        raise InputError("name at least one score file")
    return files


def check_apart(out: str, inputs: Iterable[str]) -> None:
    """Raise `InputError` if the output file `out` is among the inputs."""
    place = stores.canonical(out)
    for path in inputs:
        if stores.canonical(path) == place:
            raise InputError(f"--out {out} would overwrite the input {path}; choose another")


def tables_at(place: UPath) -> list[UPath]:
    """The Parquet file at `place`, or the Parquet files of the folder there."""
    return [place] if place.is_file() else listed(place, "*.parquet")


def listed(folder: UPath, pattern: str) -> list[UPath]:
    """List the files of a folder by name; none if the folder does not exist."""
    try:
        return sorted(folder.glob(pattern), key=str) if folder.is_dir() else []
    except FileNotFoundError:
        return []


def table_metadata(file: str) -> dict[str, str]:
    """Key-value metadata of a Parquet file, without oversized values.

    Raises `InputError` if it cannot be read.
    """
    try:
        with stores.ask("read", file, stores.open_parquet, stores.location(file)) as parquet:
            raw = parquet.metadata.metadata or {}
    except ValueError as error:  # pyarrow's own errors are ValueErrors
        reason = str(error).splitlines()[0]
        raise InputError(f"{file} cannot be read as Parquet: {reason}") from error
    return {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for key, value in raw.items()
        if len(value) <= LARGEST_TEXT
    }


def _missing(path: UPath) -> str:
    if any((path / name).is_dir() for name in (WORKING_FOLDER, "_work")):
        return f"{path} holds an unfinished run: run the same `ncclean score` command again"
    if path.is_dir():
        return f"{path} holds no Parquet files"
    if path.name and path.with_name(path.name + ".work").is_dir():
        return f"{path} is not finished yet: run the same `ncclean score` command again"
    return why_missing(path)
