"""Check that shards are those of a table: img2dataset calls every corpus's first one 00000."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence

from ncclean.base.formats import counted
from ncclean.base.text_files import parse_json
from ncclean.data.fingerprints import changed_shards
from ncclean.data.member_samples import caption_keys, sample_uid
from ncclean.data.reader import read_samples
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef, shards_by_name
from ncclean.errors import InputError, ShardError
from ncclean.storage.catalog import columns_of, connect
from ncclean.storage.tables import fingerprints, table_metadata

logger = logging.getLogger(__name__)

_SAMPLES = 20  # from the start of the first, a middle and the last shard


def as_scored(
    tables: Sequence[str], shards: Sequence[ShardRef], say: Callable[[str], None] = logger.warning
) -> list[ShardRef]:
    """Return shards with the names and the `image_key` under which they were scored in `tables`.

    Raises `InputError` if tables and shards differ in the uids of a few samples, or name other
    images, and for tables without shards and keys. Samples missing from the tables are skipped, as
    are unreadable shards: later steps report them. A corpus whose json has no uids cannot be
    distinguished from another with the same names and keys; `say` is called if shards have changed
    since they were scored.
    """
    shards = _with_pictures(tables, shards)
    said = tables[0] if len(tables) == 1 else f"each of {' and '.join(tables[:3])}"
    connection = connect(tables)
    try:
        columns = columns_of(connection, "scores")
        if missing := next((one for one in ("shard", "key") if one not in columns), None):
            raise InputError(f"{said} is not about samples of shards: it has no column {missing}")
        names = connection.execute("SELECT DISTINCT shard FROM scores WHERE shard IS NOT NULL")
        scored = shards_by_name([name for (name,) in names.fetchall()], shards)
        called = {shard.name: name for name, shard in scored.items()}
        shards = [dataclasses.replace(one, name=called.get(one.name, one.name)) for one in shards]
        now = {one.name: one.fingerprint for one in shards if one.name in scored}
        if changed := changed_shards(fingerprints(tables), now):
            first = next(one.recorded().url for one in shards if one.name == changed[0])
            say(
                f"{counted(len(changed), 'shard')} changed since the scoring (first: {first}): the "
                "scores are of what was there"
            )
        # Whoever reads a selection compares every sample; pages show the images of a score table.
        is_selection = "status" not in columns
        first = "" if is_selection else "AND status <> 'duplicate_key'"
        for number in sorted({0, len(shards) // 2, len(shards) - 1}) if shards else ():
            shard = shards[number]
            uids = _uids(shard)
            if not uids or "uid" not in columns:
                continue  # no need to search the tables
            rows = connection.execute(
                f"SELECT key, uid FROM scores WHERE list_contains($1, key) AND shard = $2 {first}",
                [list(uids), shard.name],
            ).fetchall()
            others = [(key, uid) for key, uid in rows if uids[key] != uid]
            if others and not (is_selection and len(others) < len(rows)):
                key, uid = others[0]
                raise another_shard(shard.url, said, key, uids[key], uid)
    finally:
        connection.close()
    return shards


def another_shard(url: str, table: str, key: str, uid: str, scored_uid: str) -> InputError:
    """Return the error for a shard that is not the one in the table, by a sample's uid."""
    return InputError(
        f"{url} is not the shard that {table} is about: sample {key} has the uid {uid} in it, "
        f"and {scored_uid} there"
    )


def captions_as_scored(tables: Sequence[str], caption_key: CaptionKeys = None) -> CaptionKeys:
    """Return the caption keys to read samples by: those given, else those recorded in tables.

    None without either. Raises `InputError` if `caption_key` differs from a table's, or tables
    differ from each other: caption numbers would refer to other captions.
    """
    asked = caption_keys(caption_key) or None
    for table in tables:
        keys = _scored_captions(table)
        if keys is None:
            continue
        if asked is not None and keys != asked:
            hint = ": leave it out" if caption_key else ""
            raise InputError(f"{table} was scored {_said(keys)}, not {_said(asked)}{hint}")
        asked = keys
    return caption_key or list(asked or ()) or None


def _scored_captions(table: str) -> tuple[str, ...] | None:
    """Return the caption keys that a table records for images; for vectors they name a column.

    Raises `InputError` for invalid keys.
    """
    metadata = table_metadata(table)
    text = metadata.get("caption_key") if "image_key" in metadata else None
    if text is None:
        return None
    keys = parse_json(text, f"{table}: caption_key") if text.startswith("[") else text or None
    if isinstance(keys, list) and not all(isinstance(key, str) for key in keys):
        raise InputError(f"{table}: caption_key is no list of names")
    return caption_keys(keys)


def _said(keys: Sequence[str]) -> str:
    return f"with --caption-key {' --caption-key '.join(keys)}" if keys else "without --caption-key"


def picture_as_scored(tables: Sequence[str], image_key: str | None) -> str | None:
    """Return the `image_key` with which tables were made, if they are about images.

    Raises `InputError` if another one is requested.
    """
    recorded = {table_metadata(table).get("image_key") for table in tables}
    for key in recorded - {None}:
        if image_key is not None and image_key != key:
            how = f"with --image-key {key}" if key else "without --image-key"
            raise InputError(
                f"--image-key {image_key}: {tables[0]} is about other pictures; it was scored {how}"
            )
        image_key = key or None
    return image_key


def _with_pictures(tables: Sequence[str], shards: Sequence[ShardRef]) -> list[ShardRef]:
    """Return the shards with the image key of the tables, if these are about images."""
    keys = {one: picture_as_scored(tables, one) for one in {shard.image_key for shard in shards}}
    return [dataclasses.replace(shard, image_key=keys[shard.image_key]) for shard in shards]


def _uids(shard: ShardRef) -> dict[str, str]:
    """Return the uids of the first samples by key, if the json has one."""
    uids: dict[str, str] = {}
    try:
        for sample in itertools.islice(read_samples(shard), _SAMPLES):
            if sample.metadata.get("uid"):
                uids.setdefault(sample.key, sample_uid(sample.metadata, shard.name, sample.key))
    except (ShardError, OSError):
        pass
    return uids
