"""Resolve paths, folders, globs, braces, lists and URLs to an ordered list of shards."""

from __future__ import annotations

import bisect
import dataclasses
import glob
import hashlib
import itertools
import os
import posixpath
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from braceexpand import braceexpand
from upath import UPath

from ncclean.base import stores
from ncclean.base.file_names import short_name
from ncclean.base.formats import counted
from ncclean.base.regular_files import open_file, why_missing
from ncclean.base.text_files import read_text
from ncclean.base.url_secrets import name_without_secrets, without_secrets
from ncclean.data.fingerprints import Fingerprint
from ncclean.data.lance_table import is_lance, lance_size_and_version
from ncclean.errors import InputError

_READ_BUFFER = 1 << 20
# For an object store; one block is read while the next is on its way.
_BLOCK_BYTES = 8 << 20
_BLOCKS = 4
_QUESTIONS = 32  # concurrent requests to a store
_MOST_BRACES = 1_000_000
_WORTH_A_LISTING = 100  # objects in a folder
WEBDATASET = "webdataset"
SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class ShardRef:
    """A reference to one shard: its location, its name, and what changes when its bytes do.

    `name` is the file name without suffix, preceded by as many parent folders as distinguish the
    shards of one run. Shards of another `layout` than tars may consist of several `files`, and be a
    range of `rows` of them, starting at a byte `offset`, or a folder's files from one key to
    another, the `span`; see `ncclean.data.embeddings.units` and `ncclean.data.images.units`. If a
    sample has several images, `image_key` names one, in lower case.
    """

    name: str
    url: str
    size: int
    version: str  # modification time in nanoseconds, or the object store's etag
    layout: str = WEBDATASET
    files: tuple[str, ...] = ()  # besides `url`
    rows: tuple[int, int] | None = None
    offset: int = 0
    span: tuple[str, str] | None = None
    image_key: str | None = None

    def __post_init__(self) -> None:
        if self.layout == "table" and self.url.endswith(".parquet"):  # written by runs of 0.3
            object.__setattr__(self, "layout", "parquet")
        object.__setattr__(self, "files", tuple(self.files))  # JSON has lists
        object.__setattr__(self, "rows", self.rows and tuple(self.rows))
        object.__setattr__(self, "span", self.span and tuple(self.span))

    @property
    def count(self) -> int | None:
        """The number of rows of the shard; None if unknown before reading."""
        return self.rows[1] - self.rows[0] if self.rows is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the shard's fields that are not defaults: a record may list 100,000 shards."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value != _DEFAULTS.get(name)}

    def recorded(self) -> ShardRef:
        """Return the shard as records keep it, without secrets in its URLs."""
        if not stores.is_url(self.url):
            return self
        files = tuple(map(without_secrets, self.files))
        return dataclasses.replace(self, url=without_secrets(self.url), files=files)

    def absolute(self) -> ShardRef:
        """Return the shard with absolute paths, for a worker with another working folder."""
        files = tuple(map(stores.absolute, self.files))
        return dataclasses.replace(self, url=stores.absolute(self.url), files=files)

    @property
    def fingerprint(self) -> Fingerprint:
        """The size and digests by which a change of the shard is noticed later."""
        url = self.recorded().url
        # The target of a link, and the link, which may lead elsewhere later.
        urls = sorted({stores.canonical(url), stores.absolute(url)})
        return Fingerprint(self.size, " ".join(map(_digest, urls)), _digest(self.version))

    @property
    def part_name(self) -> str:
        """Return the file name of the shard's part of the score table."""
        return f"part-{short_name(self.name.replace('/', '__'))}.parquet"

    def open(self) -> BinaryIO:
        """Open the shard as a binary stream; objects of a store are read ahead, not copied."""
        if not stores.is_url(self.url):
            return cast(BinaryIO, open_file(self.url, _READ_BUFFER))
        return cast(
            BinaryIO, stores.open_binary(self.url, block_bytes=_BLOCK_BYTES, blocks=_BLOCKS)
        )


def _digest(text: str) -> str:
    return text and hashlib.blake2b(text.encode(errors="replace"), digest_size=4).hexdigest()


_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(ShardRef)
    if field.default is not dataclasses.MISSING
}


def resolve_shards(sources: Iterable[str]) -> list[ShardRef]:
    """Expand sources into shards, in the order given, folders and globs sorted.

    A source is a shard, a folder of `*.tar`, a glob, a brace range (`{00000..00099}.tar`), a list
    file (`@shards.txt`, one source a line) or a URL that fsspec supports. Raises `InputError` for a
    source without matches, and for a shard named twice.
    """
    urls = [url for source in sources for url in expand(source, _expand_one)]
    if not urls:
        raise InputError("name at least one shard")
    check_named_once(urls)
    return [
        ShardRef(name, url, size, version)
        for name, url, (size, version) in zip(
            distinct_names(urls, SUFFIXES), urls, sizes_and_versions(urls), strict=True
        )
    ]


def match_shards(names: Sequence[str], shards: Sequence[ShardRef]) -> dict[str, ShardRef]:
    """Find the shard for each shard name of a selection, as `shards_by_name` does.

    Raises `InputError` for a name without a shard.
    """
    matched = shards_by_name(names, shards)
    missing = [name for name in names if name not in matched]
    if missing:
        raise InputError(
            f"not among --shards: {counted(len(missing), 'shard')} of the selection "
            f"(first: {min(missing)})"
        )
    return matched


def shards_by_name(names: Iterable[str], shards: Iterable[ShardRef]) -> dict[str, ShardRef]:
    """Find the shard for each shard name of a table; omit names that match no shard or several.

    Names carry as many folders as distinguished the shards of the scoring run, which may be more or
    fewer than needed here. `names` are all names of the table: with `train` alone, `00000` may be
    its `train/00000` or `val/00000`, and the folder of the file decides.
    """
    exact = {ref.name: ref for ref in shards}
    by_end: dict[str, list[ShardRef]] = defaultdict(list)
    for ref in exact.values():
        by_end[posixpath.basename(ref.name)].append(ref)
    names_of: dict[str, list[str]] = defaultdict(list)
    for name in names:
        ends = [
            ref
            for ref in ([exact[name]] if name in exact else by_end[posixpath.basename(name)])
            if f"/{name}".endswith(f"/{ref.name}") or ref.name.endswith(f"/{name}")
        ]
        if len(ends) == 1:
            names_of[ends[0].name].append(name)
    for own, several in names_of.items():
        if len(several) > 1:
            folders = f"/{posixpath.dirname(exact[own].url)}/"
            names_of[own] = [name for name in several if folders.endswith(f"/{name}"[: -len(own)])]
    return {meant[0]: exact[own] for own, meant in names_of.items() if len(meant) == 1}


def expand(
    source: str, one: Callable[[str], list[str]], _around: tuple[str, ...] = ()
) -> list[str]:
    """Call `one` for a source, or for each source of a list file or brace range.

    Raises `InputError` for a list that does not exist or names itself, and for a range of more than
    a million.
    """
    if source.startswith("@"):
        listing = Path(source[1:])
        if not listing.is_file():
            raise InputError(f"the list of shards {why_missing(source[1:])}")
        inside = (*_around, stores.canonical(source[1:]))
        if inside[-1] in _around:
            raise InputError(f"the list of shards {listing} names itself")
        lines = [line.strip() for line in read_text(listing).splitlines()]
        return [
            url for line in lines if line and line[0] != "#" for url in expand(line, one, inside)
        ]
    if "{" in source and not Path(source).exists():
        pieces = list(itertools.islice(braceexpand(source), _MOST_BRACES + 1))
        if len(pieces) > _MOST_BRACES:
            raise InputError(f"{source} stands for more than {_MOST_BRACES:,} shards")
        return [url for piece in pieces for url in one(piece)]
    return one(source)


def places(source: str) -> list[str]:
    """Expand a glob into sorted paths; return any other path unchanged.

    Raises `InputError` for a glob that matches nothing.
    """
    is_url = stores.is_url(source)
    has_pattern = any(char in stores.without_query(source) for char in "*?[")
    if not has_pattern or _is_name(source):
        return [source]
    if is_url:
        filesystem, path = stores.filesystem(source)
        paths = [
            _url(source, name)
            for name in stores.ask("list", source, stores.answered, filesystem.glob, path)
        ]
    else:
        paths = glob.glob(source, recursive=True)
    if not paths:
        raise InputError(f"{source} matches no file")
    return sorted(paths)


def _is_name(pattern: str) -> bool:
    """Check whether a glob is the name of a file; of an object, only if it would not match it."""
    if stores.is_url(pattern):
        return "[" in pattern and stores.is_file(stores.location(pattern))
    return Path(pattern).exists()


def _expand_one(source: str) -> list[str]:
    return [url for place in places(source) for url in _shards_at(place)]


def _shards_at(place: str) -> list[str]:
    """Return a shard, or the shards of a folder."""
    if is_tar(place) and (stores.is_url(place) or Path(place).is_file()):
        return [place]
    if urls := tars_in(place):
        return urls
    if stores.is_url(place):
        raise InputError(f"{place} matches no shard")
    if Path(place).is_dir():
        raise InputError(
            f"{place} holds no shards: neither tars, nor images or tables of them, nor embeddings"
        )
    if Path(place).exists():
        return [place]
    raise InputError(f"{place} does not exist")


def is_tar(place: str) -> bool:
    """Check whether a path or URL ends like a tar, ignoring the URL's query."""
    return stores.without_query(place).endswith(SUFFIXES)


def tars_in(folder: str) -> list[str]:
    """Return the tar shards of a folder, sorted; none for another path. Raises `InputError`."""
    inside = folder.rstrip("/")
    names = (
        entry.name
        for entry in stores.listing(folder, is_there=stores.is_url(folder))
        if entry.name.endswith(SUFFIXES)
    )
    return [f"{inside}/{name}" if inside else f"/{name}" for name in names]


def _url(source: str, name: str) -> str:
    """Return the URL of an object as its store names it."""
    return f"{source.split('://', 1)[0]}://{name.split('://', 1)[-1]}"


def sizes_and_versions(urls: Sequence[str]) -> list[tuple[int, str]]:
    """Return size and version of each file; objects of one folder are listed with one request.

    An object that its store refuses has neither: reading it will report the refusal. Raises
    `InputError` if all are refused.
    """
    if not any(map(stores.is_url, urls)):
        return [_size_and_version(url) for url in urls]
    listed = _listed(urls)
    refused: list[InputError] = []

    def facts(url: str) -> tuple[int, str]:
        try:
            return listed.get(url) or _size_and_version(url)
        except InputError as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            refused.append(error)
            return 0, ""

    with ThreadPoolExecutor(_QUESTIONS) as pool:
        results = list(pool.map(facts, urls))
    if len(refused) == len(urls):
        raise refused[0]
    return results


def file_sizes(paths: Iterable[UPath]) -> dict[str, int]:
    """Return the sizes of those paths that are files."""
    files = [str(p) for p in stores.present_files(paths) if stores.is_url(p) or p.exists()]
    return {file: size for file, (size, _) in zip(files, sizes_and_versions(files), strict=True)}


def _listed(urls: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return sizes and versions from listings, for folders with many requested objects."""
    wanted = Counter(url.rpartition("/")[0] for url in urls if stores.is_url(url))
    return {
        f"{folder}/{entry.name}": (entry.size or 0, entry.version)
        for folder, count in wanted.items()
        # The hub's file system caches file facts separately for each thread.
        if count >= _WORTH_A_LISTING or folder.startswith("hf://")
        for entry in stores.listing(folder)
        if entry.version and not entry.is_folder
    }


def _size_and_version(url: str) -> tuple[int, str]:
    if is_lance(url):
        return lance_size_and_version(url)
    if not stores.is_url(url):
        facts = os.stat(url)
        return facts.st_size, str(facts.st_mtime_ns)
    filesystem, path = stores.filesystem(url)
    info = stores.ask("read", url, stores.answered, filesystem.info, path)
    return max(int(info.get("size") or 0), 0), stores.version_of(info)


def check_named_once(urls: Sequence[str]) -> None:
    """Raise `InputError` for an input that is named twice."""
    twice = next((url for url, count in Counter(urls).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{twice} is named more than once: leave one out")


def distinct_names(urls: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """Return file names without suffix, preceded by as many folders as make them distinct."""
    pieces = []
    for url in urls:
        stem = name_without_secrets(url).split("://", 1)[-1].replace(os.sep, "/")
        for suffix in suffixes:
            stem = stem.removesuffix(suffix)
        # `.` and `..` take the name of the folder that they stand for.
        pieces.append(_folders(stem) or _folders(os.path.abspath(stem)) or ["root"])
    deepest = max(map(len, pieces))
    # More folders distinguish at least as much; bisection avoids trying every depth of a thousand.
    depth = (
        bisect.bisect_left(
            range(1, deepest + 1), True, key=lambda depth: _are_distinct(_ends(pieces, depth))
        )
        + 1
    )
    if depth <= deepest:
        return _ends(pieces, depth)
    return [f"{index:06d}-{piece[-1]}" for index, piece in enumerate(pieces)]


def _folders(path: str) -> list[str]:
    return [piece for piece in path.split("/") if piece not in ("", ".", "..")]


def _ends(pieces: Sequence[Sequence[str]], depth: int) -> list[str]:
    return ["/".join(piece[-depth:]) for piece in pieces]


def _are_distinct(names: Sequence[str]) -> bool:
    """Check for distinct names, also on file systems that ignore case, as macOS's does."""
    folded = (unicodedata.normalize("NFC", name).casefold() for name in names)
    return len({name.replace("/", "__") for name in folded}) == len(names)
