"""Local files and object stores behind one set of paths, through universal_pathlib and fsspec.

ncclean adds retries while a store refuses or is unreachable, and turns errors that retries cannot
help into one sentence.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import fsspec
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)
from upath import UPath

from ncclean.base.regular_files import IS_LFS_POINTER, LFS_POINTER, check_is_file, open_file
from ncclean.base.store_errors import explain, is_store_error, is_transient
from ncclean.base.url_secrets import is_broken, without_secrets
from ncclean.errors import InputError, one_line

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Outages of up to this many seconds are waited out; a longer one ends the run, which can be
# resumed.
PATIENCE_SECONDS = 300.0
_LONGEST_PAUSE_SECONDS = 20.0
# Extras in pyproject.toml, by scheme.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# fsspec's others read one file as instructions where to read from, including Python and Jinja
# expressions, or reach into other processes. Chains (`zip::s3`) are excluded, too.
_SCHEMES = frozenset((
    "abfs", "abfss", "adl", "az", "file", "gcs", "gs", "hdfs", "hf", "http", "https", "local",
    "memory", "oci", "oss", "r2", "s3", "s3a", "sftp", "webdav", "webhdfs",
))  # fmt: skip
HTTP = ("http://", "https://")
_FEW_OBJECTS = 8  # requested one by one
REQUESTS_AT_ONCE = 32  # of one process, for many files


def is_url(path: str | UPath) -> bool:
    """Whether `path` is a URL of an object store."""
    return "://" in str(path)


def without_query(path: str) -> str:
    """Cut the query, which may hold a signature, from an http URL; keep other URLs unchanged."""
    return path.partition("?")[0] if path.startswith(HTTP) else path


def file_name(listed: str, folder: str) -> str:
    """Return a name from a folder's listing as that of its file: http lists links, in percent."""
    return unquote(listed) if folder.startswith(HTTP) else listed


def canonical(path: str) -> str:
    """Return a unique name for each file: links and relative paths resolved, URLs unchanged."""
    return path if is_url(path) else os.path.realpath(path)


def absolute(path: str) -> str:
    """Make a path absolute, for a worker with another working folder; keep URLs unchanged."""
    return path if is_url(path) else os.path.abspath(path)


def location(path: str) -> UPath:
    """Turn a path or URL into a path object whose listings are never cached.

    Raises `InputError` for a URL whose library is not installed or whose scheme is unknown.
    """
    if not is_url(path):
        return UPath(path)
    scheme = path.partition("://")[0]
    if scheme not in _SCHEMES:
        raise InputError(
            f"{path} cannot be opened: {scheme} is none of {', '.join(sorted(_SCHEMES))}"
        )
    if is_broken(path):
        raise InputError(
            f"{path} cannot be opened: a `/`, `?` or `#` in a password is written %2F, %3F or %23"
        )
    try:
        place = UPath(path, use_listings_cache=False)
        place.fs  # noqa: B018  imports the library that the scheme needs
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(path.partition("://")[0])
        if isinstance(error, ImportError) and extra is not None:
            raise InputError(f"{path} needs an extra: pip install 'ncclean[{extra}]'") from error
        raise InputError(f"{path} cannot be opened: {one_line(error)}") from error
    return place


def filesystem(url: str) -> tuple[Any, str]:
    """Open the fsspec file system of a URL; return it with the path within it."""
    place = location(url)
    return place.fs, place.path


def patiently(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Retry `work` until it succeeds, with growing random pauses, for `PATIENCE_SECONDS`.

    Errors that retries cannot help are raised at once, the last one when time is up.
    """
    attempts = Retrying(
        retry=retry_if_exception(is_transient),
        wait=wait_random_exponential(multiplier=0.5, max=_LONGEST_PAUSE_SECONDS),
        stop=stop_after_delay(PATIENCE_SECONDS),
        before_sleep=_log_retry,
        reraise=True,
    )
    return attempts(work, *args, **kwargs)


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    seconds = state.next_action.sleep if state.next_action else 0.0
    what = getattr(state.fn, "__name__", "the access")
    logger.warning("trying %s again in %.1f s: %s", what, seconds, without_secrets(repr(error)))


def ask(verb: str, path: object, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call `work` with retries. Raises `InputError`, in one sentence: cannot `verb` `path`."""
    try:
        return patiently(work, *args, **kwargs)
    except Exception as error:
        if not is_store_error(error):
            raise
        raise InputError(explain(path, error, verb)) from error


def answered(work: Callable[..., T], *args: Any) -> T:
    """Ask a store for metadata. Raises `OSError` for an invalid answer.

    A proxy may return its own page instead, which the store's client does not expect.
    """
    try:
        return work(*args)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"what answers is not the store, or not as it should ({one_line(error)})"
        raise OSError(errno.EINVAL, what) from error


_kept_listings: ContextVar[dict[str, list[Entry]] | None] = ContextVar("listings", default=None)


class Entry(NamedTuple):
    """A name in a folder; `size` and `version` are None if the listing does not state them."""

    name: str
    is_folder: bool
    size: int | None = None
    version: str | None = None


def listing(folder: str | UPath, *, is_there: bool = False) -> list[Entry]:
    """List a folder by name; empty if there is no such folder.

    With `is_there`, a missing folder is also an error. Links to folders count as files. Raises
    `InputError` if the folder cannot be listed.
    """
    place, listings = str(folder), _kept_listings.get()
    if listings is not None and (listings.get(place) or not is_there) and place in listings:
        return listings[place]
    if is_url(folder):
        entries = sorted(ask("list", folder, _list_url, place, is_there))
    else:
        entries = sorted(ask("list", folder, _list_local, place, is_there))
    if listings is not None:
        listings[place] = entries
    return entries


@contextmanager
def listings_kept() -> Iterator[None]:
    """Within this context, list each folder only once in this thread."""
    token = _kept_listings.set({})
    try:
        yield
    finally:
        _kept_listings.reset(token)


def _list_local(folder: str, is_there: bool) -> list[Entry]:
    try:
        with os.scandir(folder or ".") as entries:
            return [Entry(one.name, one.is_dir(follow_symlinks=False)) for one in entries]
    except (FileNotFoundError, NotADirectoryError):
        if is_there:
            raise
        return []


def _list_url(folder: str, is_there: bool) -> list[Entry]:
    system, path = filesystem(folder)
    try:
        return answered(_entries, system, path)
    except (FileNotFoundError, NotADirectoryError):
        if is_there:
            raise
        return []


def _entries(system: Any, path: str) -> list[Entry]:
    system.invalidate_cache(path)  # the hub's keeps listings regardless of its options
    return [
        Entry(
            one["name"].rstrip("/").rpartition("/")[2],
            one["type"] == "directory",
            max(int(one.get("size") or 0), 0),
            version_of(one),
        )
        for one in system.ls(path, detail=True)
        if one["name"].strip("/") != path.strip("/")  # a folder's own marker
    ]


def version_of(info: Mapping[str, Any]) -> str:
    """A version of an object that changes with its bytes, from its store's metadata."""
    names = (
        "ETag", "etag", "blob_id", "mtime", "LastModified", "Last-Modified", "created"
    )  # fmt: skip  # a blob is of git, on the hub
    return str(next((info[name] for name in names if info.get(name)), ""))


def exists(path: UPath) -> bool:
    """Check whether there is a file or folder. Raises `InputError` if its store does not answer.

    fsspec's own checks deny that there is anything then.
    """
    return bool(ask("read", path, path.exists) if not is_url(path) else _kind(path))


def is_file(path: UPath) -> bool:
    """Check whether there is a file. Raises `InputError` if its store does not answer."""
    if not is_url(path):
        return bool(ask("read", path, path.is_file))
    try:
        return _kind(path) == "file"
    except InputError as error:
        # What a store that forbids to list says of a missing object.
        if isinstance(error.__cause__, PermissionError):
            return False
        raise


def _kind(path: UPath) -> str | None:
    """Return whether a URL is a `file` or a `directory`, None if there is nothing."""
    try:
        return str(ask("read", path, answered, path.fs.info, path.path)["type"])
    except InputError as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError) and not is_transient(cause):
            return None
        raise


def present_files(paths: Iterable[UPath]) -> list[UPath]:
    """Return the paths that exist as files or links; objects of one folder are listed once."""
    folders: dict[str, list[UPath]] = defaultdict(list)
    present: list[UPath] = []
    for path in paths:
        place = str(path)
        if is_url(place):
            folders[place.rpartition("/")[0]].append(path)
        elif _is_local_file(place):
            present.append(path)
    for members in folders.values():
        if len(members) <= _FEW_OBJECTS:
            present += filter(is_file, members)
        else:
            entries = listing(members[0].parent)
            names = {entry.name for entry in entries if not entry.is_folder}
            present += [path for path in members if path.name in names]
    return present


def remove_files(paths: Iterable[UPath]) -> None:
    """Delete the paths that are files; folders and missing paths are left alone."""
    objects: list[UPath] = []
    for path in present_files(paths):
        if is_url(path):
            objects.append(path)
        else:
            ask("remove", path, path.unlink, missing_ok=True)
    by_system: dict[int, list[UPath]] = defaultdict(list)
    for path in objects:
        by_system[id(path.fs)].append(path)
    for members in by_system.values():  # many with one request
        ask("remove", members[0].parent, members[0].fs.rm, [path.path for path in members])


def _is_local_file(path: str) -> bool:
    return os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path))


def read_bytes(path: UPath) -> bytes:
    """Read a small file as bytes."""
    if is_url(path):
        return patiently(path.read_bytes)
    with open_file(str(path)) as file:  # a pipe would wait for ever
        return bytes(file.read())


def read_files(paths: Sequence[UPath]) -> list[bytes]:
    """Read small files whole, those of a store at once. Raises `InputError` if one fails."""
    if not paths or not is_url(paths[0]):
        return [ask("read", path, read_bytes, path) for path in paths]
    names = [path.path for path in paths]  # as ranges, else the size of each is requested first
    ends = [None] * len(names)
    contents: list[bytes] = ask(
        "read", paths[0], paths[0].fs.cat_ranges, names, [0] * len(names), ends, on_error="raise"
    )
    return contents


def read_tails(paths: Sequence[UPath], most: int) -> list[bytes]:
    """Read the last `most` bytes of files, those of a store at once."""
    if not paths or not is_url(paths[0]):
        return [ask("read", path, _tail, str(path), most) for path in paths]
    names = [path.path for path in paths]
    tails: list[bytes] = ask(
        "read", paths[0], paths[0].fs.cat_ranges, names, [-most] * len(names), [None] * len(names),
        on_error="raise",
    )  # fmt: skip
    return tails


def _tail(path: str, most: int) -> bytes:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), most, max(size - most, 0))


def remove_empty(folder: UPath) -> None:
    """Remove a folder of a disk if nothing is in it."""
    if not is_url(folder):
        with suppress(OSError):
            os.rmdir(str(folder))


def read_range(url: str, begin: int, end: int) -> bytes:
    """Read bytes `begin` to `end` of a file. Raises `InputError` if that fails."""
    if is_url(url):
        system, path = filesystem(url)
        data = ask("read", url, system.cat_file, path, start=begin, end=end)
    else:
        data = ask("read", url, _read_local, url, begin, end)
    if len(data) > end - begin:
        raise InputError(f"{url}: its server ignores ranges of bytes; copy the file to a disk")
    if len(data) < end - begin:
        raise InputError(f"{url} is shorter than it was: it has changed since it was read")
    return bytes(data)


def read_ranges(path: UPath, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read several ranges of a file, an object's at once; fewer bytes at its end."""
    if not is_url(path):
        with open_file(str(path)) as file:
            return [os.pread(file.fileno(), end - begin, begin) for begin, end in ranges]
    begins, ends = [begin for begin, _ in ranges], [end for _, end in ranges]
    paths = [path.path] * len(ranges)
    data: list[bytes] = patiently(path.fs.cat_ranges, paths, begins, ends, on_error="raise")
    return data


def _read_local(path: str, begin: int, end: int) -> bytes:
    with open_file(path) as file:
        return os.pread(file.fileno(), end - begin, begin)


def open_binary(url: str, *, block_bytes: int, blocks: int) -> Any:
    """Open an object as a binary stream that fetches the next block ahead of time."""
    options = {"maxblocks": blocks}
    return _opened(url, block_size=block_bytes, cache_type="background", cache_options=options)


def open_anywhere(path: UPath) -> Any:
    """Open a file or object for random access, without reading ahead."""
    if not is_url(path):
        return open_file(str(path))
    return _opened(str(path), cache_type="none")


def _opened(url: str, **options: Any) -> Any:
    """Open an object whose reads are retried, too: not every store's library does that."""
    system, path = filesystem(url)
    file = _or_os_error(url, system.open, path, "rb", **options)
    if (cache := getattr(file, "cache", None)) is not None:
        cache.fetcher = functools.partial(_or_os_error, url, cache.fetcher)
    return file


def _or_os_error(url: str, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call `work` with retries. Raises `OSError`, also for an error of the store's own client."""
    try:
        return patiently(work, *args, **kwargs)
    except Exception as error:
        if isinstance(error, OSError) or not is_store_error(error):
            raise
        raise OSError(errno.EINVAL, explain(url, error, "read")) from error


def _configure_s3() -> None:
    """Let botocore first retry throttling and server errors; it opens 10 connections at most.

    A person's configuration of fsspec takes precedence.
    """
    settings = fsspec.config.conf.setdefault("s3", {}).setdefault("config_kwargs", {})
    settings.setdefault("retries", {"max_attempts": 3, "mode": "standard"})
    settings.setdefault("max_pool_connections", REQUESTS_AT_ONCE)


_configure_s3()


def open_parquet(path: UPath, dictionaries: Sequence[str] = ()) -> Any:  # a `ParquetFile`
    """Open a Parquet file, local or in a store; only requested parts are read.

    `dictionaries` are text columns to read as dictionaries. Raises `OSError` or
    `pyarrow.ArrowException` if it cannot be read.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        if not is_url(path):
            check_is_file(path)
            return parquet.ParquetFile(path, read_dictionary=dictionaries)
        return parquet.ParquetFile(open_anywhere(path), read_dictionary=dictionaries)
    except pyarrow.ArrowInvalid as error:
        with open_anywhere(path) as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise pyarrow.ArrowInvalid(IS_LFS_POINTER) from error
        raise
    except UnicodeDecodeError as error:  # of names of columns
        raise pyarrow.ArrowInvalid(f"a name in its schema is not UTF-8: {error}") from error
    except OSError as error:
        if error.errno is None and "thrift" in str(error):  # its footer: a retry would not help
            raise pyarrow.ArrowInvalid(one_line(error)) from error
        raise
