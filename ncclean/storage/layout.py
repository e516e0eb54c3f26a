"""Where a score table and its working files lie.

`--out scores.parquet` is one file with its working folder `scores.parquet.work` beside it; any
other path is a folder of one part per shard with the working folder `_work` inside. Working
folders hold the manifest and the parts that are not final yet; readers of the table never look
into them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from upath import UPath

from ncclean import stores
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.storage.log import exists
from ncclean.storage.manifest import NAME
from ncclean.storage.tables import listed, tables_at


@dataclass(frozen=True)
class ScoreLayout:
    out: UPath

    @property
    def is_single_file(self) -> bool:
        return self.out.suffix == ".parquet"

    @property
    def work(self) -> UPath:
        if self.is_single_file:
            return self.out.with_name(self.out.name + ".work")
        return self.out / "_work"

    @property
    def manifest(self) -> UPath:
        return self.work / NAME

    def part(self, shard: ShardRef) -> UPath:
        """The shard's rows before finalize."""
        return self.work / shard.part_name

    def list_parts(self) -> list[UPath]:
        """The parts that are there."""
        return listed(self.work, "part-*.parquet")

    def final(self, shard: ShardRef) -> UPath:
        """The file that holds the shard's rows after finalize."""
        return self.out if self.is_single_file else self.out / shard.part_name

    def check_usable(self) -> None:
        """Raise `InputError` if something is in the way that no scoring run made."""
        if exists(self.manifest):
            return
        if stores.is_url(self.out):
            taken = bool(stores.ask("list", self.out, tables_at, self.out))
        else:
            if self.is_single_file and self.out.is_dir():
                raise InputError(
                    f"{self.out} is a folder; a path ending in .parquet is for one file"
                )
            if not self.is_single_file and self.out.is_file():
                raise InputError(f"{self.out} is a file; end it in .parquet, or name a folder")
            taken = bool(tables_at(self.out))
        if taken:
            raise InputError(
                f"{self.out} exists and no run to resume belongs to it; use --overwrite to "
                "replace it, or another --out"
            )

    def clear(self) -> None:
        """Remove the table and its working files, and nothing else."""
        ours = [self.out] if self.is_single_file else list(listed(self.out, "part-*.parquet"))
        if stores.is_url(self.work):
            if stores.ask("list", self.work, self.work.exists):
                stores.ask("remove", self.work, self.work.fs.rm, self.work.path, recursive=True)
        elif self.work.is_dir():
            shutil.rmtree(str(self.work))
        for path in ours:
            stores.ask("remove", path, path.unlink, missing_ok=True)
