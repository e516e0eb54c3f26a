"""Where a score table and its working files lie.

`--out scores.parquet` is one file with its working folder `scores.parquet.work` beside it; any
other path is a folder of one part per shard with the working folder `_work` inside. Working
folders hold the manifest and the parts that are not final yet; readers of the table never look
into them.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from upath import UPath

from ncclean import stores
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.storage.log import exists
from ncclean.storage.manifest import NAME


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
        return _glob(self.work, "part-*.parquet")

    def final(self, shard: ShardRef) -> UPath:
        """The file that holds the shard's rows after finalize."""
        return self.out if self.is_single_file else self.out / shard.part_name

    def check_usable(self) -> None:
        """Raise `InputError` if something is in the way that no scoring run made."""
        if exists(self.manifest):
            return
        if stores.is_url(self.out):
            taken = bool(stores.ask("list", self.out, _tables, self.out))
        else:
            if self.is_single_file and self.out.is_dir():
                raise InputError(
                    f"{self.out} is a folder; a path ending in .parquet is for one file"
                )
            if not self.is_single_file and self.out.is_file():
                raise InputError(f"{self.out} is a file; end it in .parquet, or name a folder")
            taken = bool(_tables(self.out))
        if taken:
            raise InputError(
                f"{self.out} exists and no run to resume belongs to it; use --overwrite to "
                "replace it, or another --out"
            )

    def clear(self) -> None:
        """Remove the table and its working files, and nothing else."""
        ours = [self.out] if self.is_single_file else list(_glob(self.out, "part-*.parquet"))
        if stores.is_url(self.work):
            if stores.ask("list", self.work, self.work.exists):
                stores.ask("remove", self.work, self.work.fs.rm, self.work.path, recursive=True)
        elif self.work.is_dir():
            shutil.rmtree(str(self.work))
        for path in ours:
            stores.ask("remove", path, path.unlink, missing_ok=True)


def _tables(out: UPath) -> list[UPath]:
    """The Parquet file or files at `out`."""
    return [out] if out.is_file() else _glob(out, "*.parquet")


def _glob(folder: UPath, pattern: str) -> list[UPath]:
    try:
        return sorted(folder.glob(pattern), key=str) if folder.is_dir() else []
    except FileNotFoundError:
        return []


def table_files(paths: Iterable[str]) -> list[str]:
    """Score files, folders of them, globs and URLs to a list of Parquet files.

    Raises `InputError` for a path that holds none.
    """
    files: list[str] = []
    for path in paths:
        where = stores.location(path)
        is_pattern = any(char in path for char in "*?[")
        if is_pattern and stores.is_url(path):
            listed = stores.ask("list", path, where.fs.glob, where.path)
            found = sorted(where.fs.unstrip_protocol(name) for name in listed)
        elif taken := stores.ask("read", path, _tables, where):
            found = [str(file) for file in taken]
        else:
            found = sorted(glob.glob(path, recursive=True)) if is_pattern else []
        if not found:
            raise InputError(_missing(where))
        files += found
    if not files:
        raise InputError("no score files given")
    return files


def _missing(path: UPath) -> str:
    if (path / "_work").is_dir():
        return f"{path} holds an unfinished run: run the same `ncclean score` command again"
    if path.is_dir():
        return f"{path} holds no Parquet files"
    if path.name and path.with_name(path.name + ".work").is_dir():
        return f"{path} is not finished yet: run the same `ncclean score` command again"
    return f"{path} does not exist"
