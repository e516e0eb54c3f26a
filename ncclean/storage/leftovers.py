"""Files to remove once a table is written: those of the table before, and of dropped shards.

They are listed in a file first, so that whoever goes on after a kill removes them. As long as it is
there, the files in the folder of the table do not go together.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published, reported
from ncclean.base.text_files import parse_json, read_text


@dataclass(frozen=True)
class Leftovers:
    """Names of files of the table, and numbers of shards whose embeddings go."""

    table: list[str]
    numbers: list[int]

    @classmethod
    def read(cls, path: UPath) -> Leftovers:
        """Read what a run that was killed has left; names of files elsewhere are passed over."""
        if not stores.present_files([path]):
            return cls([], [])
        fields = parse_json(read_text(str(path)), path)
        table = [str(name) for name in fields.get("table", ()) if "/" not in str(name)]
        return cls(table, [int(number) for number in fields.get("numbers", ())])

    def __add__(self, other: Leftovers) -> Leftovers:
        return Leftovers(
            sorted({*self.table, *other.table}), sorted({*self.numbers, *other.numbers})
        )

    def write(self, path: UPath) -> None:
        """Publish the list."""
        with reported(None), published(path) as aside:
            aside.write_text(json.dumps(asdict(self)), encoding="utf-8")
