"""Tell whether shards have changed since something was made of them.

Tables, selections and embeddings carry the fingerprints of their shards in their metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

FINGERPRINTS = "shard_fingerprints"  # a JSON object by the names of shards


class Fingerprint(NamedTuple):
    """The size of a shard, and digests of its URLs and of its version, to notice later changes.

    0 and "" if unknown.
    """

    size: int
    urls: str
    version: str

    def has_changed(self, now: Fingerprint) -> bool:
        """Check whether a shard has changed since; a copy elsewhere has another version."""
        if self.size and now.size and self.size != now.size:
            return True
        has_versions = self.version != "" != now.version
        is_same_place = bool({*self.urls.split()} & {*now.urls.split()})
        return is_same_place and has_versions and self.version != now.version


Fingerprints = dict[str, Fingerprint]


def parsed(recorded: Any) -> Fingerprints:
    """Return the fingerprints in a decoded JSON object; none if it has another form."""
    try:
        return {
            name: Fingerprint(int(size), str(urls), str(version))
            for name, (size, urls, version) in recorded.items()
        }
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return {}


def from_text(text: str | bytes | None) -> Fingerprints:
    """Return the fingerprints in the metadata of a file; none if absent or invalid."""
    try:
        return parsed(json.loads(text or "{}"))
    except (RecursionError, TypeError, ValueError):
        return {}


def fingerprints_of(schema: pa.Schema) -> Fingerprints:
    """Return the fingerprints in the metadata of a table's schema."""
    return from_text((schema.metadata or {}).get(FINGERPRINTS.encode()))


def as_metadata(fingerprints: Mapping[str, Fingerprint]) -> dict[str, str]:
    """Return table metadata that holds fingerprints; empty without any."""
    return {FINGERPRINTS: json.dumps(fingerprints)} if fingerprints else {}


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables, merging the fingerprints in their metadata."""
    carried = as_metadata(agreed(fingerprints_of(table.schema) for table in tables))
    return pa.concat_tables(tables).replace_schema_metadata(carried)


def agreed(several: Iterable[Mapping[str, Fingerprint]]) -> Fingerprints:
    """Merge fingerprints of shards from several sources; those that differ are left out."""
    united: dict[str, set[Fingerprint]] = {}
    for fingerprints in several:
        for name, fingerprint in fingerprints.items():
            united.setdefault(name, set()).add(fingerprint)
    return {name: min(each) for name, each in united.items() if len(each) == 1}


def changed_shards(then: Mapping[str, Fingerprint], now: Mapping[str, Fingerprint]) -> list[str]:
    """Return the names of the shards whose fingerprints differ between two times."""
    return [name for name in now if name in then and then[name].has_changed(now[name])]
