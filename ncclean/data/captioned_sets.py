"""A table of captioned images as a retrieval set: Karpathy's json, csv, jsonl, Parquet."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from upath import UPath

from ncclean.data.images.resolve import resolve_images
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError

_KARPATHY = ".json"


@dataclass(frozen=True)
class CaptionedSet:
    """One file. Of Karpathy's json the test split, unless the options name another."""

    folder: UPath  # the file
    options: SourceOptions
    kind: str = "retrieval"
    label: str = ""

    @property
    def name(self) -> str:
        """The file's without ending; with the splits where they are not those of the test."""
        return "-".join([str(self.folder.stem), *self.options.split])

    def has(self, split: str) -> bool:
        return split == "test"

    def shards(self, split: str) -> list[ShardRef]:
        """Units of the table. Raises `InputError` for a file without images."""
        options = self.options
        if self.folder.suffix == _KARPATHY and not options.split:
            options = dataclasses.replace(options, split=("test",))
        shards = resolve_images([str(self.folder)], options)
        if all(shard.rows is not None and shard.rows[0] == shard.rows[1] for shard in shards):
            raise InputError(f"{self.folder} has no image of the split {', '.join(options.split)}")
        return shards

    def classnames(self) -> list[str]:
        raise InputError(f"{self.folder} has captions and no classes: use `evaluate retrieval`")

    templates = classnames
