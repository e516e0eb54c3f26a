"""Find the Parquet files that a score table's path, folder, glob or URL stands for.

Files in a store are listed, and then read from local copies: `ncclean.base.local_copies` says why.
Within `listed_once`, each path is listed once.
"""

from __future__ import annotations

import fnmatch
import glob
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.formats import counted
from ncclean.base.local_copies import AT_ONCE, ListedFile, local_copies, with_original_names
from ncclean.base.regular_files import why_missing
from ncclean.base.store_errors import is_transient
from ncclean.base.text_files import LARGEST_TEXT
from ncclean.data.fingerprints import FINGERPRINTS, Fingerprints, agreed, changed_shards, from_text
from ncclean.errors import InputError

logger = logging.getLogger(__name__)

# Exists in the working folder while the files of a table are inconsistent.
FINALIZING = "finalizing"
# Metadata of a table: a JSON object with the number of rows of each shard in the file.
ROWS_BY_SHARD = "rows_by_shard"
_listed: ContextVar[dict[str, list[ListedFile]] | None] = ContextVar("listed", default=None)


@contextmanager
def listed_once() -> Iterator[None]:
    """Remember listings of paths in a store within this context, in this thread."""
    token = _listed.set({})
    try:
        yield
    finally:
        _listed.reset(token)


def listed_files(paths: Iterable[str]) -> list[ListedFile]:
    """Expand score files, folders, globs and URLs into Parquet files.

    Raises `InputError` for a path without any.
    """
    paths, by_path = list(paths), _listed.get()
    by_path = {} if by_path is None else by_path
    unknown = [path for path in dict.fromkeys(paths) if path not in by_path]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for path, files_there in zip(unknown, pool.map(_files_at, unknown), strict=True):
            if not files_there:
                raise InputError(_missing(stores.location(path)))
            by_path[path] = files_there
    files = [file for path in paths for file in by_path[path]]
    if not files:
        raise InputError("name at least one score file")
    return files


def table_files(paths: Iterable[str]) -> list[str]:
    """Return the paths and URLs of the Parquet files of a table. Raises as `listed_files` does."""
    return [file.path for file in listed_files(paths)]


def local_tables(paths: Iterable[str]) -> list[str]:
    """Return a table's Parquet files on this machine, fetching them from a store.

    Raises `InputError` for a path without any, and for files that cannot be fetched.
    """
    return local_copies(listed_files(paths))


def _files_at(path: str) -> list[ListedFile]:
    place = stores.location(path)
    is_pattern = any(char in path for char in "*?[")
    if not stores.is_url(path):
        tables = stores.ask("read", path, tables_at, place)
        if not tables and is_pattern:
            tables = [UPath(name) for name in sorted(glob.glob(path, recursive=True))]
            _check_whole({table.parent for table in tables})
        _check_whole([place])
        return [ListedFile(str(table)) for table in tables]
    return stores.ask("list" if is_pattern else "read", path, _stored_files, place, is_pattern)


def _stored_files(place: UPath, is_pattern: bool) -> list[ListedFile]:
    system = place.fs
    system.invalidate_cache(place.path)  # the hub's keeps listings regardless of its options
    if is_pattern:
        matches = system.glob(place.path, detail=True).values()
        files = sorted(_listed_file(system.unstrip_protocol(one["name"]), one) for one in matches)
        _check_whole({stores.location(file.path).parent for file in files})
        return files
    try:
        facts = stores.answered(system.info, place.path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_transient(error):
            raise
        return []
    if facts["type"] == "file":
        return [_listed_file(str(place), facts)]
    entries = stores.listing(place)
    if any(entry.name == WORKING_FOLDER for entry in entries):
        _check_whole([place])
    return [
        ListedFile(str(place / entry.name), entry.size, entry.version)
        for entry in entries
        if fnmatch.fnmatchcase(entry.name, "*.parquet")
    ]


def _listed_file(url: str, facts: Mapping[str, Any]) -> ListedFile:
    return ListedFile(url, int(facts.get("size") or 0), stores.version_of(facts))


def _check_whole(folders: Iterable[UPath]) -> None:
    """Raise `InputError` for a folder whose files are inconsistent."""
    for folder in folders:
        if any(one.name == FINALIZING for one in stores.listing(folder / WORKING_FOLDER)):
            raise _in_the_making(folder)


def check_apart(out: str, inputs: Iterable[str]) -> None:
    """Raise `InputError` if the output file `out` is among the inputs."""
    place = stores.canonical(out)
    for path in inputs:
        if stores.canonical(path) == place:
            raise InputError(f"--out {out} would overwrite the input {path}; choose another")


def tables_at(place: UPath) -> list[UPath]:
    """Return the Parquet file at a path, or the Parquet files of the folder there."""
    return [place] if stores.is_file(place) else listed(place, "*.parquet")


def listed(folder: UPath, pattern: str) -> list[UPath]:
    """Return the files of a folder, by name; none if the folder does not exist."""
    try:
        return sorted(folder.glob(pattern), key=str) if folder.is_dir() else []
    except FileNotFoundError:
        return []


def table_metadata(path: str) -> dict[str, str]:
    """Return key-value metadata of a table's first file, without oversized values.

    Raises `InputError` if it cannot be read.
    """
    first = listed_files([path])[0]
    try:
        (copy,) = local_copies([first])
        with stores.ask("read", first.path, stores.open_parquet, UPath(copy)) as file:
            raw = file.metadata.metadata or {}
    except ValueError as error:  # pyarrow's own errors are ValueErrors
        message = f"{first.path} cannot be read as Parquet: {str(error).splitlines()[0]}"
        raise InputError(with_original_names(message)) from error
    return {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for key, value in raw.items()
        if len(value) <= LARGEST_TEXT
    }


def fingerprints(tables: Sequence[str]) -> Fingerprints:
    """Return fingerprints of the shards of images from which tables were made, by shard name.

    Shards are missing if nothing is recorded, or if tables record different ones. Raises
    `InputError` if a table cannot be read.
    """
    metadata = map(table_metadata, local_tables(tables))
    return agreed(from_text(one.get(FINGERPRINTS)) for one in metadata)


def say_others(named: Mapping[str, Iterable[str]], scores: Sequence[str]) -> None:
    """Log a warning for each joined table that was made from other versions of the scored shards.

    `named` maps the table's name to its files.
    """
    recorded = {name: fingerprints(list(files)) for name, files in named.items()}
    scored = fingerprints(scores) if any(recorded.values()) else {}
    for name, of_others in recorded.items():
        say_changed(name, scored, of_others)


def say_changed(name: str, scored: Fingerprints, recorded: Fingerprints) -> None:
    """Log a warning if the table `name` was `recorded` on other versions of the scored shards."""
    if changed := changed_shards(scored, recorded):
        logger.warning(
            "the table %s is not of what was scored: %s changed in between (first: %s)",
            name, counted(len(changed), "shard"), changed[0],
        )  # fmt: skip


def _in_the_making(path: object) -> InputError:
    return InputError(
        f"{path} is being written, or its writing was interrupted: run the same command again, or "
        f"`ncclean score --finalize-only --out {path}`"
    )


def _missing(path: UPath) -> str:
    if any((path / name).is_dir() for name in (WORKING_FOLDER, "_work")):
        return f"{path} holds an unfinished run: run the same `ncclean score` command again"
    if path.is_dir():
        return f"{path} holds no Parquet files"
    if path.name and path.with_name(path.name + ".work").is_dir():
        return f"{path} is not finished yet: run the same `ncclean score` command again"
    return why_missing(path)
