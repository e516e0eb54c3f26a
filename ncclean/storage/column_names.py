"""Name the columns of joined tables.

A column has its own name if it is unique, and always `table.column`. Case does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from ncclean.data.selection import CAPTION_NUMBER
from ncclean.errors import InputError

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class JoinedFile:
    """A table to join to a score table: the name for its columns, and its path."""

    name: str
    path: str

    @classmethod
    def parse(cls, text: str) -> JoinedFile:
        """Parse a value of `--join`: `NAME=PATH`, or a path, whose stem is the name.

        Characters of a stem other than letters, digits and underscores become underscores. Raises
        `InputError` for a stem that leaves no name.
        """
        named = _NAMED.fullmatch(text)
        if named is not None:
            return cls(named[1], named[2])
        stem = PurePosixPath(text.rstrip("/")).name.removesuffix(".parquet")
        name = re.sub(r"\W", "_", stem, flags=re.ASCII).strip("_")
        if not name:
            raise InputError(f"--join {text}: give the table a name, --join NAME={text}")
        return cls(f"_{name}" if name[0].isdigit() else name, text)


class Origin(NamedTuple):
    """The origin of a column: the number of the table (0 is the score table) and its name there."""

    table: int
    column: str


@dataclass(frozen=True)
class ColumnNames:
    """The columns of a score table and of the tables joined to it.

    `types` maps each column, by its shortest name, to DuckDB's type. `keys` are the columns on
    which each table is joined.
    """

    types: dict[str, str]
    origins: dict[str, Origin]
    keys: tuple[tuple[str, ...], ...] = ()
    _by_name: dict[tuple[str, ...], str] = field(default_factory=dict, repr=False)
    _tables: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, scores: Mapping[str, str], joined: Iterable[tuple[JoinedFile, Mapping[str, str]]] = ()
    ) -> ColumnNames:
        """Name the columns of a score table and of joined tables, from their names and types.

        Raises `InputError` for a table without a common key with the scores, or with a taken name.
        """
        joined = list(joined)
        types, origins = dict(scores), {name: Origin(0, name) for name in scores}
        by_name: dict[tuple[str, ...], str] = {(name.lower(),): name for name in scores}
        tables: dict[str, tuple[str, ...]] = {}
        keys = []
        for number, (file, columns) in enumerate(joined, start=1):
            owner = file.name.lower()
            if owner == "scores" or owner in tables:
                raise InputError(
                    f"--join {file.path}: there are two tables called {file.name}; give it another "
                    f"name, --join NAME={file.path}"
                )
            keys.append(_keys(scores, file, columns))
            tables[owner] = tuple(columns)
            for column, kind in columns.items():
                own = (column.lower(),)
                if own[0] in keys[-1]:
                    by_name[(owner, *own)] = by_name[own]
                    continue
                name = f"{file.name}.{column}" if own in by_name else column
                types[name], origins[name] = kind, Origin(number, column)
                by_name[(owner, *own)] = name
                by_name.setdefault(own, name)
        return cls(types, origins, tuple(keys), by_name, tables)

    def find(self, parts: Sequence[str]) -> str | None:
        """Return the shortest name of a column given in parts, as in `column` or `table.column`.

        None if there is none. Raises `InputError` if a joined table lacks the column.
        """
        name = self._by_name.get(tuple(part.lower() for part in parts))
        if name is None and len(parts) == 1 and parts[0] in self.types:
            return parts[0]  # `table.column`, quoted as one name
        if name is None and len(parts) == 2 and parts[0].lower() in self._tables:
            columns = ", ".join(self._tables[parts[0].lower()])
            raise InputError(f"{parts[0]} has no column {parts[1]!r}; it has {columns}")
        return name

    def named(self, text: str) -> str | None:
        """Return the shortest name of the column that a text names; None if there is none.

        The text is a name as in SQL or as in the file.
        """
        exact = self._by_name.get((text.lower(),))
        if exact is not None or text in self.types:
            return exact or text
        return self._by_name.get(tuple(text.lower().split(".", 1)))

    def is_table(self, name: str) -> bool:
        return name.lower() in self._tables


def _keys(scores: Iterable[str], file: JoinedFile, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns to join on: the uid, else shard and key, and the caption number."""
    score_names = {name.lower() for name in scores}
    common = score_names & {name.lower() for name in columns}
    for key in (("uid",), ("shard", "key")):
        if set(key) <= common:
            return (*key, CAPTION_NUMBER) if CAPTION_NUMBER in common else key
    if not score_names & {"uid", "shard"}:
        raise InputError(
            f"{file.path} cannot be joined: the scores have neither uid nor shard and key"
        )
    raise InputError(
        f"{file.path} cannot be joined to the scores: it needs uid, or shard and key; it has "
        f"{', '.join(columns)}"
    )
