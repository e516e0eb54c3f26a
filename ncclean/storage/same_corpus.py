"""Are these the shards that a table is about? img2dataset calls every corpus's first one 00000."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ncclean.data.member_samples import sample_uid
from ncclean.data.reader import read_samples
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.storage.catalog import connect

_SAMPLES = 20  # the first ones of the first, a middle and the last shard


def check_same_corpus(tables: Sequence[str], shards: Sequence[ShardRef]) -> None:
    """Raise `InputError` if tables and shards differ in the uids of a few samples.

    Samples that the tables do not have are passed over, and so are shards that cannot be read: what
    follows will say so. Raises `InputError` where all uids of a shard are others. A corpus
    whose json has no uids cannot be told from another one with the same names and keys.
    """
    connection = connect(tables)
    try:
        for number in sorted({0, len(shards) // 2, len(shards) - 1}) if shards else ():
            shard = shards[number]
            here = _uids(shard)
            if not here:
                continue  # no need to search the tables
            rows = connection.execute(
                "SELECT key, uid FROM scores WHERE list_contains($1, key) AND "
                "(shard = $2 OR shard LIKE '%/' || $2 OR $2 LIKE '%/' || shard)",
                [list(here), shard.name],
            ).fetchall()
            if rows and all(here[key] != uid for key, uid in rows):
                key, uid = rows[0]
                raise InputError(
                    f"{shard.url} is not the shard that {tables[0]} is about: sample {key} has "
                    f"the uid {here[key]} in it, and {uid} there"
                )
    finally:
        connection.close()


def _uids(shard: ShardRef) -> dict[str, str]:
    """The uids of the first samples by key, where the json has one."""
    uids: dict[str, str] = {}
    try:
        for sample in itertools.islice(read_samples(shard), _SAMPLES):
            if sample.metadata.get("uid"):
                uids[sample.key] = sample_uid(sample.metadata, shard.name, sample.key)
    except (ShardError, OSError):
        pass
    return uids
