"""Check the inputs of commands, stamp their versions, and record what a result depends on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ncclean
from ncclean.base.option_values import as_list
from ncclean.base.options import Options, Reads, parameters, value_of
from ncclean.base.url_secrets import without_secrets
from ncclean.errors import InputError

if TYPE_CHECKING:
    from ncclean.data.shards import ShardRef

LOCAL_MODEL = "local-dir:"
Stamp = tuple[str, int, str]  # path, size, version
# More files of an input are recorded as a digest.
_LISTED_FILES = 100


def identity(options: Options) -> dict[str, Any]:
    """Return the options, inputs and version that a command's result depends on, as JSON.

    Options that do not affect the result, and those of other methods, are omitted.
    """
    values, inputs = {}, {}
    for name, parameter in parameters(type(options)).items():
        option, value = parameter.option, value_of(options, parameter)
        if name == "out" or option.is_idle or not option.in_recipes:
            continue
        if option.methods and getattr(options, "method", None) not in option.methods:
            continue
        values[name] = _plain(value)
        if option.reads is not None:
            files = [stamp for path in as_list(value) for stamp in stamps(option.reads, path)]
            inputs[name] = {
                path: f"{size:,} bytes, version {version}" if version else "by its name"
                for path, size, version in files
            }
            if len(files) > _LISTED_FILES:
                digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
                inputs[name] = {f"of {name}": f"{len(files):,} files, {digest}"}
    return {"version": ncclean.__version__, "options": values, "inputs": inputs}


def check_there(
    reads: Reads, value: str, pretrained: str | None = None, *, is_random: bool = False
) -> None:
    """Raise `InputError` or `ModelError` if an input of a command does not exist.

    `is_random` requests the architecture of a model, without weights.
    """
    from ncclean.base import stores
    from ncclean.models.checkpoint import resolve as resolve_model
    from ncclean.storage.tables import table_files

    if reads in (Reads.SHARDS, Reads.SOURCE):
        _shards(reads, value)
    elif reads in (Reads.TABLE, Reads.JOINED):
        table_files([_table(reads, value)])
    elif reads in (Reads.NAME_OR_FILE, Reads.FUNCTION):
        return  # checked by the command
    elif reads is Reads.MODEL:
        if is_random or value.startswith(LOCAL_MODEL) or "/" not in value:
            resolve_model(value, pretrained, is_random=is_random)
        elif not value.startswith("hf-hub:") and not Path(value).exists():
            raise InputError(f"{value} does not exist")
    else:
        path = _path(reads, value)
        if not stores.is_url(path) and not Path(path).exists():
            raise InputError(f"{path} does not exist")


def stamps(reads: Reads, value: str) -> Iterator[Stamp]:
    """Return path, size and version of every file behind an input.

    The name of a model is returned unchanged.
    """
    from ncclean.base import stores
    from ncclean.storage.decisions import entries_of
    from ncclean.storage.tables import listed_files

    if reads in (Reads.SHARDS, Reads.SOURCE):
        for shard in _shards(reads, value):
            shard = shard.recorded()
            yield " ".join((shard.url, *shard.files)), shard.size, shard.version
    elif reads in (Reads.TABLE, Reads.JOINED):
        for file, size, version in listed_files([_table(reads, value)]):
            yield file_stamp(file) if size is None else (without_secrets(file), size, version or "")
    else:
        value = _path(reads, value)
        path = Path(value.removeprefix(LOCAL_MODEL))
        # A folder that happens to be called `demo` is not the model of that name.
        may_be_name = reads in (Reads.MODEL, Reads.NAME_OR_FILE)
        is_name = may_be_name and "/" not in str(path) and not path.is_file()
        if stores.is_url(value):
            yield file_stamp(value)
        elif not path.exists() or (is_name and str(path) == value):
            yield value, 0, ""
        elif path.is_file():
            yield file_stamp(str(path))
            # Decisions of a review that has not ended are read with those in the file.
            yield from map(file_stamp, _files_below(str(entries_of(stores.location(str(path))))))
        else:
            yield from map(file_stamp, _files_below(str(path)))


def _files_below(path: str) -> Iterator[str]:
    """Yield the files of a folder and of those that links in it lead to, each folder once."""
    walked = set()
    for folder, folders, names in os.walk(path, followlinks=True):
        if (target := os.path.realpath(folder)) in walked:
            folders.clear()
            continue
        walked.add(target)
        files = (os.path.join(folder, name) for name in names)
        yield from filter(os.path.exists, files)  # editors leave links to nothing


def _shards(reads: Reads, value: str) -> list[ShardRef]:
    from ncclean.data.sources import resolve_pairs, resolve_sources

    return resolve_sources([value]) if reads is Reads.SOURCE else resolve_pairs([value])


def _table(reads: Reads, value: str) -> str:
    from ncclean.storage.column_names import JoinedFile

    return JoinedFile.parse(value).path if reads is Reads.JOINED else value


def _path(reads: Reads, value: str) -> str:
    """Return the file of an option that takes `NAME=FILE`, any other value unchanged.

    For a function it is the module's, in the working folder.
    """
    if reads is Reads.FUNCTION:
        return f"{value.partition(':')[0].replace('.', '/')}.py"
    return value.partition("=")[2] or value if reads is Reads.NAMED else value


def file_stamp(path: str) -> Stamp:
    """Return path, size and version of a file."""
    from ncclean.base import stores

    if not stores.is_url(path):
        status = os.stat(path)
        return path, status.st_size, str(status.st_mtime_ns)
    filesystem, inside = stores.filesystem(path)
    info = stores.ask("read", path, filesystem.info, inside)
    version = info.get("ETag") or info.get("etag") or info.get("mtime")
    return without_secrets(path), int(info.get("size") or 0), str(version or "")


def _plain(value: Any) -> Any:
    """Return the value as JSON stores it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
