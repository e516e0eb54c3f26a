"""The form in which a selection is written: tars, Parquet, or images with a table."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from upath import UPath

from ncclean import stores
from ncclean.data.images.folders import Folder
from ncclean.data.images.layout import ImageLayout
from ncclean.data.images.registry import has_rows, layout_of
from ncclean.data.images.tables import TableLayout
from ncclean.data.images.text_rows import SEPARATED, TextRows
from ncclean.data.shards import WEBDATASET, ShardRef, distinct_names
from ncclean.errors import InputError
from ncclean.file_names import WORKING_FOLDER
from ncclean.selection.safe_paths import safe_path
from ncclean.storage.log import exists
from ncclean.storage.work_folder import work_folder

Layout = Literal["auto", "webdataset", "folder", "csv", "parquet"]
RECORD = "_export.jsonl"
PARQUET = ".parquet"
_MOST_TABLES = 100
_SPLIT = re.compile(
    r"(?<![a-z])(train(ing)?|valid(ation)?|val|dev|test(ing)?|eval(uation)?)(?![a-z])", re.I
)
_METADATA = "metadata"  # the table of Hugging Face's imagefolder
_NO_FOLDERS = (*SEPARATED, ".jsonl", ".tar", ".tgz", ".gz")


@dataclass(frozen=True)
class OutLayout:
    """Layout of an export's files.

    `table` is the file of all rows, made at the end: its name in the output, or its ending alone if
    it is the output; empty where each task writes files of its own. `beside` writes captions beside
    images too; `separator` is what a csv has. `roots` are the folders of images with those that
    they become, each with a table of its own if `is_split`; images that lie in shards get the
    folder of these unless there `is_one`.
    """

    name: str = WEBDATASET
    table: str = ""
    beside: bool = False
    separator: str = ","
    roots: tuple[tuple[str, str], ...] = ()
    is_one: bool = False
    is_split: bool = False

    @classmethod
    def of_json(cls, fields: Mapping[str, Any] | None) -> OutLayout:
        """The layout that a record has, as far as names of files follow from it."""
        if fields is None:
            return TARS
        roots = tuple((str(number), place) for number, place in enumerate(fields["places"]))
        kept = {name: value for name, value in fields.items() if name != "places"}
        return cls(**kept, roots=roots, is_split=bool(roots))

    def to_json(self) -> dict[str, Any]:
        """The layout as a record has it."""
        return {
            "name": self.name,
            "table": self.table,
            "beside": self.beside,
            "separator": self.separator,
            "places": [place for _, place in self.roots] if self.is_split else [],
        }

    def image_folder(self, root: str | None, shard: str) -> str:
        """The folder for the images below `root`, or for those in a shard."""
        if root is not None:
            return dict(self.roots)[root]
        return "" if self.is_one else _without_splits(shard)

    def table_folder(self, root: str | None) -> tuple[int, str]:
        """Number and folder of the table that the images below `root` go to."""
        places = [place for _, place in self.roots]
        place = dict(self.roots)[root] if self.is_split and root is not None else ""
        return (places.index(place), place) if place else (0, "")

    @property
    def path_column(self) -> str:
        """The column of paths where the input has none: Hugging Face's, or open_clip's."""
        return "filepath" if self.name == "csv" else "file_name"

    @property
    def caption_column(self) -> str:
        return "title" if self.name == "csv" else "caption"


TARS = OutLayout()


@dataclass(frozen=True)
class Targets:
    """Paths of an export's files."""

    layout: OutLayout
    out: UPath
    digits: int

    @property
    def work(self) -> UPath:
        """The folder of an export's record."""
        if self.is_file:
            # In plain view it was data for whoever loads the folder; a run that lies there stays.
            earlier = self.out.parent / f"{self.out.name}.work"
            hidden = self.out.parent / WORKING_FOLDER / self.out.name
            return earlier if exists(earlier / RECORD) else hidden
        return work_folder(self.out, RECORD, self.out)

    @property
    def is_file(self) -> bool:
        """Whether the output is one file."""
        return self.layout.table.startswith(".")

    @property
    def tables(self) -> list[UPath]:
        """The files that are joined from the rows of all tasks."""
        name = self.layout.table
        if self.is_file:
            return [self.out]
        folders = [place for _, place in self.layout.roots] if self.layout.is_split else [""]
        return [self.out / folder / name for folder in folders] if name else []

    def data(self, number: int) -> UPath:
        """Return the path that a task writes: a shard, or rows of the table."""
        if not self.layout.table:
            ending = ".tar" if self.layout.name == WEBDATASET else PARQUET
            return self.out / f"{self.name(number)}{ending}"
        ending = PARQUET if self.layout.table.endswith(PARQUET) else ".jsonl"
        return self.work / f"{self.name(number)}_rows{ending}"

    def stats(self, number: int) -> UPath:
        """The statistics of a task, which are published after what it writes."""
        return self.stats_folder / f"{self.name(number)}_stats.json"

    @property
    def stats_folder(self) -> UPath:
        return self.out if self.layout.name == WEBDATASET else self.work

    def name(self, number: int) -> str:
        return f"{number:0{self.digits}d}"


def out_layout(layout: Layout, out: str, shards: Sequence[ShardRef]) -> OutLayout:
    """Return the layout for `--layout`; `auto` is that of the input.

    Raises `InputError` for an output whose ending says something else.
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
    table = _table(name, is_file, shards)
    roots = _roots(shards)
    return OutLayout(
        name,
        table,
        beside=name == "folder" and all(shard.layout == Folder.name for shard in shards),
        separator=_separator(table, shards),
        roots=roots,
        is_one=len(shards) == 1,
        is_split=1 < len(roots) <= _MOST_TABLES
        and table in (f"{_METADATA}.csv", f"{_METADATA}.jsonl")
        and all(_is_table(shard) and _is_metadata(shard) for shard in shards),
    )


def form_of(shards: Sequence[ShardRef]) -> Layout:
    """The form that comes closest to that of the input; tars for what is none of them."""
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


def _separator(table: str, shards: Sequence[ShardRef]) -> str:
    """Return the separator of the input's first table, if it is text; else a comma or tab."""
    first = next((shard for shard in shards if shard.url.endswith(SEPARATED)), None)
    if table.startswith("pairs.") or first is None:
        return "\t" if table.endswith(".tsv") else ","
    with TextRows(first.url) as rows:
        return rows.separator or ","


def _is_table(shard: ShardRef) -> bool:
    return isinstance(layout_of(shard), TableLayout)


def _is_metadata(shard: ShardRef) -> bool:
    return _base(shard).startswith(f"{_METADATA}.")


def _without_splits(name: str) -> str:
    """A name in which Hugging Face sees no split: what is called train is without its table."""
    plain = _SPLIT.sub("part", name)
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=3).hexdigest()
    return safe_path(name if plain == name else f"{plain}-{digest}")


def _base(shard: ShardRef) -> str:
    return posixpath.basename(stores.without_query(shard.url))


def _roots(shards: Sequence[ShardRef]) -> tuple[tuple[str, str], ...]:
    """The folders that images lie in, and their places below the one that holds them all."""
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
    """Whether the images of a shard may be files of their own."""
    return has_rows(shard) or shard.layout == Folder.name
