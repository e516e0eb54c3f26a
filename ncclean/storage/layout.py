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
from pathlib import Path

from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.storage.manifest import NAME


@dataclass(frozen=True)
class ScoreLayout:
    out: Path

    @property
    def is_single_file(self) -> bool:
        return self.out.suffix == ".parquet"

    @property
    def work(self) -> Path:
        if self.is_single_file:
            return self.out.with_name(self.out.name + ".work")
        return self.out / "_work"

    @property
    def manifest(self) -> Path:
        return self.work / NAME

    def part(self, shard: ShardRef) -> Path:
        """The shard's rows before finalize."""
        return self.work / shard.part_name

    def final(self, shard: ShardRef) -> Path:
        """The file that holds the shard's rows after finalize."""
        return self.out if self.is_single_file else self.out / shard.part_name

    def check_usable(self) -> None:
        """Raise `InputError` if something is in the way that no scoring run made."""
        if self.manifest.exists():
            return
        if self.is_single_file and self.out.is_dir():
            raise InputError(f"{self.out} is a folder; a path ending in .parquet is for one file")
        if not self.is_single_file and self.out.is_file():
            raise InputError(f"{self.out} is a file; end it in .parquet, or name a folder")
        taken = self.out.is_file() or (self.out.is_dir() and any(self.out.glob("*.parquet")))
        if taken:
            raise InputError(
                f"{self.out} exists and no run to resume belongs to it; use --overwrite to "
                "replace it, or another --out"
            )

    def clear(self) -> None:
        """Remove the table and its working files, and nothing else."""
        if self.work.is_dir():
            shutil.rmtree(self.work)
        if self.is_single_file:
            self.out.unlink(missing_ok=True)
        elif self.out.is_dir():
            for part in self.out.glob("part-*.parquet"):
                part.unlink()


def table_files(paths: Iterable[str]) -> list[str]:
    """Score files, folders of them and globs to a list of Parquet files.

    Raises `InputError` for a path that holds none.
    """
    files: list[str] = []
    for path in paths:
        if Path(path).is_dir():
            found = sorted(str(f) for f in Path(path).glob("*.parquet"))
        elif Path(path).is_file():
            found = [path]
        else:
            found = sorted(glob.glob(path, recursive=True))
        if not found:
            raise InputError(_missing(path))
        files += found
    if not files:
        raise InputError("no score files given")
    return files


def _missing(path: str) -> str:
    if Path(path).is_dir():
        if (Path(path) / "_work").is_dir():
            return f"{path} holds an unfinished run: run the same `ncclean score` command again"
        return f"{path} holds no Parquet files"
    if Path(path + ".work").is_dir():
        return f"{path} is not finished yet: run the same `ncclean score` command again"
    return f"{path} does not exist"
