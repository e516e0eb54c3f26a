"""The places of a score table and its working files.

`--out scores.parquet` is one file with its working folder `scores.parquet.work` beside it; any
other path is a folder of one part per shard with a working folder inside. Working folders hold the
manifest and the parts that are not final yet; readers of the table never look into them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from upath import UPath

from ncclean import stores
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.storage.log import exists
from ncclean.storage.run_record import refusal
from ncclean.storage.tables import tables_at
from ncclean.storage.work_folder import work_folder

COMMAND = "score"
MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class ScoreLayout:
    out: UPath

    @property
    def is_single_file(self) -> bool:
        return self.out.suffix == ".parquet"

    @functools.cached_property
    def work(self) -> UPath:
        """The working folder, which is where it was when the layout was first asked."""
        if self.is_single_file:
            return self.out.with_name(self.out.name + ".work")
        return work_folder(self.out, MANIFEST, self.out / "_work")

    @property
    def manifest(self) -> UPath:
        return self.work / MANIFEST

    def part(self, shard: ShardRef) -> UPath:
        """Path of a shard's part, which holds its rows until finalize."""
        return self.work / shard.part_name

    def final(self, shard: ShardRef) -> UPath:
        """Path of the final file that holds a shard's rows."""
        return self.out if self.is_single_file else self.out / shard.part_name

    def files_of(self, shard: ShardRef) -> list[UPath]:
        """Paths of the files that hold rows of this shard alone."""
        return [self.part(shard)] if self.is_single_file else [self.part(shard), self.final(shard)]

    def files(self, shards: Iterable[str]) -> Iterator[UPath]:
        """Paths of all files that scoring these shards may write, except the manifest."""
        for name in shards:
            yield from self.files_of(ShardRef(name, "", 0, ""))
        if self.is_single_file:
            yield self.out

    def taken(self) -> UPath | None:
        """Path of an existing table that a new one would replace, None if there is none.

        Raises `InputError` if the place is a folder where the name asks for a file, or the other
        way round.
        """
        if stores.is_url(self.out):
            tables = stores.ask("list", self.out, tables_at, self.out)
        else:
            if self.is_single_file and self.out.is_dir():
                raise InputError(
                    f"{self.out} is a folder, and a path ending in .parquet is for a file: choose "
                    "another --out"
                )
            if not self.is_single_file and self.out.is_file():
                raise InputError(
                    f"{self.out} is a file: choose an --out that ends in .parquet, or a folder"
                )
            tables = tables_at(self.out)
        return tables[0] if tables else None

    def has_rows(self) -> bool:
        """Whether a table with rows, or one that cannot be read, exists at `out`."""
        for path in stores.ask("list", self.out, tables_at, self.out):
            try:
                with stores.open_parquet(path) as table:
                    if table.metadata.num_rows:
                        return True
            except (OSError, pa.ArrowException):
                return True
        return False

    def check_usable(self) -> None:
        """Raise `InputError` if `out` holds something that no scoring run made."""
        if not exists(self.manifest) and (table := self.taken()) is not None:
            raise refusal(table, COMMAND)
