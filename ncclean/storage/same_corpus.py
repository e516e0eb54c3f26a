"""Are these the shards that a table is about? img2dataset calls every corpus's first one 00000."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from ncclean.data.member_samples import sample_uid
from ncclean.data.reader import read_samples
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.storage.catalog import connect
from ncclean.storage.tables import table_metadata

_SAMPLES = 20  # the first ones of the first, a middle and the last shard


def as_scored(tables: Sequence[str], shards: Sequence[ShardRef]) -> list[ShardRef]:
    """The shards that tables are about, with the `image_key` that these were made with.

    Raises `InputError` if tables and shards differ in the uids of a few samples, or name other
    pictures. Samples that the tables do not have are passed over, and so are shards that cannot be
    read: what follows will say so. A corpus whose json has no uids cannot be told from another one
    with the same names and keys.
    """
    shards = _with_pictures(tables, shards)
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
    return shards


def _with_pictures(tables: Sequence[str], shards: Sequence[ShardRef]) -> list[ShardRef]:
    """The shards with the image key of the tables, where these are about pictures."""
    recorded = {table_metadata(table).get("image_key") for table in tables}
    for key in recorded - {None}:
        for shard in shards:
            if shard.image_key is not None and shard.image_key != key:
                how = f"with --image-key {key}" if key else "without --image-key"
                raise InputError(
                    f"--image-key {shard.image_key}: {tables[0]} is about other pictures; it was "
                    f"scored {how}"
                )
        shards = [dataclasses.replace(shard, image_key=key or None) for shard in shards]
    return list(shards)


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
