"""Choose the form in which a selection is written: tars, Parquet, or images with a table."""

from __future__ import annotations

import hashlib
import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from upath import UPath

from ncclean.base import stores
from ncclean.base.file_names import WORKING_FOLDER, short_name
from ncclean.data.images.folders import Folder
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.registry import has_rows, layout_of
from ncclean.data.images.tables import TableLayout
from ncclean.data.images.text_rows import SEPARATED, TextRows
from ncclean.data.shards import WEBDATASET, ShardRef, distinct_names
from ncclean.errors import InputError

Layout = Literal["auto", "webdataset", "folder", "csv", "parquet"]
PARQUET = ".parquet"
_MOST_TABLES = 100
_SPLIT = re.compile(
    r"(?<![a-z])(train(ing)?|valid(ation)?|val|dev|test(ing)?|eval(uation)?)(?![a-z])", re.I
)
# Numbered endings of a split's file names, as used by Hugging Face or others.
_NUMBER = re.compile(r"(-\d{5}-of-\d{5}(-[0-9a-f]+)?|[-_.]?\d+)$")
_METADATA = "metadata"  # the table of Hugging Face's imagefolder
_NO_FOLDERS = (*SEPARATED, ".jsonl", ".tar", ".tgz", ".gz")


class OutTable(NamedTuple):
    """A table of an export with the rows of one input table: its path, and the input's url."""

    url: str
    path: str
    separator: str

    @property
    def folder(self) -> str:
        return posixpath.dirname(self.path)


@dataclass(frozen=True)
class OutLayout:
    """The layout of an export's files.

    `table` is the file of all rows, made at the end: its name in the output, or only its ending if
    it is the output; empty if each task writes its own files. `beside` also writes captions beside
    images; `separator` is that of a csv. `roots` map image folders of the input to folders of the
    output; images in shards get a folder for each shard, unless it `is_one`. `tables` are the
    output's tables, if it has one for each input table. `root` is the folder of the input.
    """

    name: str = WEBDATASET
    table: str = ""
    beside: bool = False
    separator: str = ","
    roots: tuple[tuple[str, str], ...] = ()
    is_one: bool = False
    tables: tuple[OutTable, ...] = ()
    root: str = ""

    @classmethod
    def of_json(cls, fields: Mapping[str, Any] | None) -> OutLayout:
        """Read the layout of an export from its record, as far as it determines file names."""
        if fields is None:
            return TARS
        name, table, separator = fields["name"], fields["table"], fields["separator"]
        # Until 0.3, the folders of tables of one name.
        paths = [posixpath.join(place, table) for place in fields.get("places", ())]
        tables = fields.get("tables") or [[path, separator] for path in paths]
        split = tuple(OutTable(str(n), *one) for n, one in enumerate(tables))
        return cls(name, table, fields["beside"], separator, tables=split)

    def to_json(self) -> dict[str, Any]:
        """Return the layout of an export for its record."""
        return {
            "name": self.name,
            "table": self.table,
            "beside": self.beside,
            "separator": self.separator,
            "tables": [[one.path, one.separator] for one in self.tables],
        }

    @property
    def all_tables(self) -> tuple[OutTable, ...]:
        """The tables of the export, in the order of their numbers."""
        return self.tables or (OutTable("", self.table, self.separator),)

    def table_of(self, shard: ShardRef) -> int:
        """Return the number of the output table that gets a shard's rows."""
        urls = [one.url for one in self.tables]
        return urls.index(shard.url) if urls else 0

    def image_folder(self, root: str | None, shard: str) -> str:
        """Return the output folder for images of the folder `root`, or for those in a shard."""
        if root is not None:
            return dict(self.roots)[root]
        return "" if self.is_one else _without_splits(shard)

    def group_of(self, shard: ShardRef) -> str:
        """Return the folder, and the split, of a shard's output file in an export to Parquet.

        A group is a folder with its slash, or a path that is numbered like `train` files, see
        `group_files`. Other forms have one group.
        """
        if self.name != "parquet" or self.table or not self.root:
            return ""
        return self.group_of_path(posixpath.relpath(_absolute(shard.url), self.root))

    def group_of_path(self, path: str) -> str:
        """Return the group of a Parquet file by its path below the root of the input."""
        folder, name = posixpath.split(path)
        folder = "".join(f"{safe_path(part)}/" for part in folder.split("/") if part)
        stem, ending = posixpath.splitext(name)[0], ""
        if (numbered := _NUMBER.search(stem)) is not None:
            stem, ending = stem[: numbered.start()], numbered[0]
        is_split = "-of-" in ending or _SPLIT.search(stem)
        return f"{folder}{safe_path(stem)}" if is_split and stem else folder

    @property
    def path_column(self) -> str:
        """The name of the column of image paths if the input has none.

        It is Hugging Face's, or open_clip's for a csv.
        """
        return "filepath" if self.name == "csv" else "file_name"

    @property
    def caption_column(self) -> str:
        return "title" if self.name == "csv" else "caption"


TARS = OutLayout()


def group_files(groups: Mapping[str, int], digits: int) -> list[str]:
    """Return paths, without ending, of the given number of Parquet files in each group."""
    return [
        f"{group}{number:0{digits}d}"
        if not group or group.endswith("/")
        else f"{group}-{number:05d}-of-{count:05d}"
        for group, count in groups.items()
        for number in range(count)
    ]


def config_of(group: str) -> str:
    """Return the first folder of a group, whose files a loader takes for one configuration.

    Folders of splits, and those that state a column's value, do not count.
    """
    first, slash, _ = group.partition("/")
    return "" if not slash or "=" in first or _SPLIT.search(first) else first


@dataclass(frozen=True)
class Targets:
    """The paths of an export's files; `groups` has the group of each task's Parquet file."""

    layout: OutLayout
    out: UPath
    digits: int
    groups: tuple[str, ...] = ()  # for each task

    @classmethod
    def of_json(cls, out: UPath, identity: Mapping[str, Any]) -> Targets:
        """Return the paths of an export's files from its record."""
        groups = identity.get("groups") or {"": identity["written_shards"]}
        group_of_task = tuple(group for group, count in groups.items() for _ in range(count))
        return cls(
            OutLayout.of_json(identity.get("layout")), out, identity["digits"], group_of_task
        )

    @property
    def work(self) -> UPath:
        """The folder of an export's record."""
        folder = self.out.parent if self.is_file else self.out
        return folder / WORKING_FOLDER / (self.out.name if self.is_file else "")

    @property
    def is_file(self) -> bool:
        """Whether the output of the export is one file."""
        return self.layout.table.startswith(".")

    @property
    def has_images(self) -> bool:
        """Whether the export writes images as files, with their rows in a table."""
        return bool(self.layout.table) and not self.is_file

    @property
    def tables(self) -> list[UPath]:
        """The files that join the rows of all tasks."""
        if self.is_file:
            return [self.out]
        return [self.out / one.path for one in self.layout.all_tables if one.path]

    def data(self) -> Iterator[UPath]:
        """Yield the file that each task writes: a shard, or a piece of the one Parquet file."""
        if self.is_file:
            yield from (
                self.work / f"{self.name(n)}_rows{PARQUET}" for n in range(len(self.groups))
            )
        elif self.layout.name == WEBDATASET:
            yield from (self.out / f"{self.name(n)}.tar" for n in range(len(self.groups)))
        elif not self.has_images:
            names = group_files(Counter(self.groups), self.digits)
            yield from (self.out / f"{name}{PARQUET}" for name in names)

    def stats(self, number: int) -> UPath:
        """Return the path of a task's statistics, which are published after its output."""
        return self.stats_folder / f"{self.name(number)}_stats.json"

    @property
    def stats_folder(self) -> UPath:
        return self.out if self.layout.name == WEBDATASET else self.work

    def name(self, number: int) -> str:
        return f"{number:0{self.digits}d}"


def out_layout(
    layout: Layout, out: str, shards: Sequence[ShardRef], sources: Sequence[str] = ()
) -> OutLayout:
    """Return the layout for `--layout`; `auto` follows the input.

    `sources` are where the shards were found. Raises `InputError` for an output whose ending
    contradicts the layout.
    """
    is_file = out.endswith(PARQUET)
    name = layout
    if layout == "auto":
        name = "parquet" if is_file else form_of(shards)
    if is_file and name != "parquet":
        raise InputError(
            f"--layout {name} writes a folder: {out} would be one file of Parquet, which "
            "--layout parquet writes"
        )
    if out.endswith(_NO_FOLDERS):
        raise InputError(f"--layout {name} writes a folder: give --out a name without an ending")
    root = _root(shards, sources)
    table = _table(name, is_file, shards)
    return OutLayout(
        name,
        table,
        beside=name == "folder" and all(shard.layout == Folder.name for shard in shards),
        separator=_separator(table, shards),
        roots=_roots(shards),
        is_one=len(shards) == 1,
        tables=_tables(name, table, root, shards),
        root=root,
    )


def form_of(shards: Sequence[ShardRef]) -> Layout:
    """Return the export layout closest to the input's; `webdataset` if there is none."""
    urls: dict[ImageLayout, set[str]] = {}
    for shard in shards:
        urls.setdefault(layout_of(shard), set()).add(stores.without_query(shard.url))
    forms = {layout.written_as(several) for layout, several in urls.items()}
    if len(forms) == 1:
        return forms.pop()
    return "folder" if forms and "webdataset" not in forms else "webdataset"


def _table(name: str, is_file: bool, shards: Sequence[ShardRef]) -> str:
    if name in ("webdataset", "parquet"):
        return PARQUET if is_file else ""
    tables = {_base(shard) for shard in shards if _is_table(shard)}
    endings = {posixpath.splitext(table)[1] for table in tables}
    separated = bool(tables) and endings <= {*SEPARATED}
    if name == "csv":
        if separated and len(tables) == 1:
            return tables.pop()
        return "pairs.tsv" if endings == {".tsv"} else "pairs.csv"
    if separated:
        return f"{_METADATA}.csv"
    return f"{_METADATA}{PARQUET if tables == {_METADATA + PARQUET} else '.jsonl'}"


def _tables(name: str, table: str, root: str, shards: Sequence[ShardRef]) -> tuple[OutTable, ...]:
    """Return the tables of an output with one for each input table; none if all share one."""
    urls = list(dict.fromkeys(shard.url for shard in shards))
    ending = posixpath.splitext(table)[1]
    is_alike = ending in (".jsonl", *SEPARATED) and all(
        _is_table(shard) and posixpath.splitext(_base(shard))[1] == ending for shard in shards
    )
    is_named = name == "csv" or all(map(_is_metadata, shards))
    if not (is_alike and is_named and 1 < len(urls) <= _MOST_TABLES):
        return ()
    paths = [safe_path(posixpath.relpath(_absolute(url), root)) for url in urls]
    separators = [_separator(path, [s for s in shards if s.url == url][:1])
                  for path, url in zip(paths, urls, strict=True)]  # fmt: skip
    return tuple(map(OutTable, urls, paths, separators))


def _separator(table: str, shards: Sequence[ShardRef]) -> str:
    """Return the separator of the input's table, if it keeps its name; else a comma or tab.

    Loaders expect commas in a `metadata.csv`, whatever the input's table has.
    """
    first = next((shard for shard in shards if shard.url.endswith(SEPARATED)), None)
    if first is None or posixpath.basename(table) != _base(first):
        return "\t" if table.endswith(".tsv") else ","
    with TextRows(first.url) as rows:
        return rows.separator or ","


def _is_table(shard: ShardRef) -> bool:
    return isinstance(layout_of(shard), TableLayout)


def _is_metadata(shard: ShardRef) -> bool:
    return _base(shard).startswith(f"{_METADATA}.")


def _without_splits(name: str) -> str:
    """Change a name that Hugging Face reads as a split: its files would lack their table."""
    plain = _SPLIT.sub("part", name)
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=3).hexdigest()
    return safe_path(name if plain == name else f"{plain}-{digest}")


def _base(shard: ShardRef) -> str:
    return posixpath.basename(stores.without_query(shard.url))


def _root(shards: Sequence[ShardRef], sources: Sequence[str]) -> str:
    """Return the folder that holds the sources or, for files, the folder that they are in."""
    urls = {_absolute(shard.url) for shard in shards}
    folders = [_absolute(source).rstrip("/") for source in sources]
    within = {
        next((one for one in folders if url.startswith(f"{one}/")), posixpath.dirname(url))
        for url in urls
    }
    alike = zip(*(one.split("/") for one in within), strict=False)
    shared = [parts[0] for parts in itertools.takewhile(lambda parts: len({*parts}) == 1, alike)]
    return "/".join(shared) or "/" * len(shared)


def _absolute(url: str) -> str:
    return stores.absolute(stores.without_query(url))


def _roots(shards: Sequence[ShardRef]) -> tuple[tuple[str, str], ...]:
    """Return the image folders, and their paths below the one that contains them all."""
    roots = sorted(
        {stores.absolute(shard.files[0]) for shard in shards if shard.files and has_files(shard)}
    )
    try:
        common = posixpath.commonpath(roots) if roots else ""
        places = [posixpath.relpath(root, common) for root in roots]
    except ValueError:  # URLs and paths
        places = distinct_names(roots, ())
    return tuple(
        (root, "" if place == "." else safe_path(place))
        for root, place in zip(roots, places, strict=True)
    )


def has_files(shard: ShardRef) -> bool:
    """Check whether the images of a shard may be separate files, outside tars and tables."""
    return has_rows(shard) or shard.layout == Folder.name


# No part may be hidden, lead upwards, or have a special meaning on another system.
_PART = re.compile(r"[^./\\\0-\x1f:*?\"<>|][^/\\\0-\x1f:*?\"<>|]*")
_HASH_BYTES = 8
_LONGEST = 1000  # characters


def safe_path(path: str) -> str:
    """Return a path if it leads downwards in plain names, else one name that ends in its hash."""
    parts = path.split("/")
    is_plain = all(_PART.fullmatch(part) and short_name(part) == part for part in parts)
    text = path.encode("utf-8", "replace").decode()  # without lone surrogates
    if is_plain and len(path) <= _LONGEST and text == path:
        return path
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES)
    plain = re.sub(r"[^\w-]+", "_", text)[-60:].strip("_")
    return f"{plain or 'image'}-{digest.hexdigest()}"
