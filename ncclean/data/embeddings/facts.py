"""Read what the metadata of embeddings states about each pair, typed as in the score table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.data.member_samples import hashed_uid
from ncclean.data.shards import ShardRef

# Metadata names for each column of the score table; the first that exists counts. clip-retrieval
# has image_path and caption, DataComp text and original_width.
SOURCES = {
    "uid": ("uid",),
    "shard": ("shard",),
    "key": ("key", "image_path"),
    "row": ("row",),
    "caption_number": ("caption_number",),
    "caption_key": ("caption_key",),
    "text": ("caption", "text"),
    "url": ("url",),
    "width": ("width", "original_width"),
    "height": ("height", "original_height"),
    "is_noisy": ("is_noisy",),
    "noise_kind": ("noise_kind",),
}

_SAME_IMAGE = 0.999  # cosine: an image that is embedded twice, in 16 bits, is above
_PIECE_ROWS = 4096


def facts_of(
    table: pa.Table,
    shard: ShardRef,
    sources: dict[str, tuple[str, ...]],
    images: np.ndarray | None = None,
) -> pa.Table:
    """Return uid, caption, URL and similar facts of each row of an embeddings table.

    Rows that agree in uid, shard and key are captions of one image, unless their `images`, (n, d)
    unit vectors, differ.
    """
    rows = len(table)
    columns = {
        column: table.column(name)
        for column, names in sources.items()
        for name in [next((name for name in names if name in table.column_names), None)]
        if name is not None
    }
    first = shard.rows[0] if shard.rows else 0
    position = pa.array(np.arange(first, first + rows), pa.int32())
    strings = {
        name: _cast(columns.get(name), pa.string(), rows)
        for name in ("uid", "shard", "key", "caption_key", "text", "url", "noise_kind")
    }
    # The row refers to a shard only if the shard is named as well.
    own_rows = columns.get("row") if "shard" in columns else None
    shards = pc.fill_null(strings["shard"], shard.name)
    sample = _samples(strings["uid"], shards, strings["key"])
    keys = strings["key"]
    if images is not None:
        # A file of many shards has their keys, each possibly counted from 0.
        others = _of_other_images(sample, images)
        sample[others] = others
        own = np.isin(np.arange(rows), others) & ~np.asarray(_is_named(strings["uid"]))
        keys = pc.if_else(pa.array(own), None, keys)
    place = position.take(pa.array(sample))
    keys = pc.coalesce(keys, pc.cast(place, pa.string()))
    return pa.table(
        {
            "uid": _uids(strings["uid"], shards, keys),
            "shard": shards,
            "key": keys,
            "row": pc.coalesce(_cast(own_rows, pa.int32(), rows), place),
            "caption_number": pc.coalesce(
                _cast(columns.get("caption_number"), pa.int16(), rows), _numbers(sample)
            ),
            "caption_key": strings["caption_key"],
            "text": strings["text"],
            "url": strings["url"],
            "width": _cast(columns.get("width"), pa.int32(), rows),
            "height": _cast(columns.get("height"), pa.int32(), rows),
            "is_noisy": _cast(columns.get("is_noisy"), pa.bool_(), rows),
            "noise_kind": strings["noise_kind"],
        }
    )


def _samples(uids: pa.Array, shards: pa.Array, keys: pa.Array) -> np.ndarray:
    """Return (n,) the first row that agrees with each row in uid, shard and key.

    A row that names neither uid nor key is a sample of its own.
    """
    sample = np.arange(len(uids))
    named = np.flatnonzero(pc.or_(_is_named(uids), _is_named(keys)).to_numpy(zero_copy_only=False))
    sample[named] = named[
        first_equal([names.take(pa.array(named)) for names in (uids, shards, keys)])
    ]
    return sample


def first_equal(columns: Sequence[pa.Array]) -> np.ndarray:
    """Return (n,) for each row of a table, the first row with equal values in all columns."""
    group = first = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = column.dictionary_encode("encode")
        if len(codes.dictionary) == len(column):
            return np.arange(len(column))  # nothing repeats, as in most corpora
        group = group * len(codes.dictionary) + np.asarray(codes.indices)
        _, first, group = np.unique(group, return_index=True, return_inverse=True)
    rows: np.ndarray = first[group]
    return rows


def _of_other_images(sample: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return the rows whose (n, d) unit vectors are not those of the first row of their sample."""
    repeats = np.flatnonzero(sample != np.arange(len(sample)))
    pieces = np.split(repeats, range(_PIECE_ROWS, len(repeats), _PIECE_ROWS))
    cosines = [np.empty(0, np.float32)]
    for rows in pieces:
        both = (images[at].astype(np.float32, copy=False) for at in (rows, sample[rows]))
        cosines.append(np.einsum("nd,nd->n", *both))
    return repeats[np.concatenate(cosines) < _SAME_IMAGE]


def _numbers(sample: np.ndarray) -> pa.Array:
    """Return the numbers of the captions of each sample, from 0 in the order of the rows."""
    order = np.argsort(sample, kind="stable")
    begin = np.searchsorted(sample[order], sample)
    number = np.argsort(order, kind="stable") - begin
    return pa.array(np.minimum(number, np.iinfo(np.int16).max), pa.int16())


def _is_named(names: pa.Array) -> pa.Array:
    return pc.not_equal(pc.fill_null(names, ""), "")


def _uids(uids: pa.Array, shards: pa.Array, keys: pa.Array) -> pa.Array:
    """Return the metadata's uids, else the hash of shard and key, as for tars."""
    missing = pc.invert(_is_named(uids))
    places = np.flatnonzero(missing.to_numpy(zero_copy_only=False))
    if not len(places):
        return uids
    chosen = pa.array(places)
    hashes = [
        hashed_uid(shard, key)
        for shard, key in zip(
            shards.take(chosen).to_pylist(), keys.take(chosen).to_pylist(), strict=True
        )
    ]
    return pc.replace_with_mask(uids, missing, pa.array(hashes, pa.string()))


def _cast(column: pa.ChunkedArray | None, kind: pa.DataType, rows: int) -> pa.Array:
    """Cast a column to another type; values that do not fit, or all of them, become null."""
    if column is None:
        return pa.nulls(rows, kind)
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # there was no chunk to combine
        whole = pa.nulls(rows, column.type)
    if pa.types.is_string(whole.type) or pa.types.is_large_string(whole.type):
        whole = _as_utf8(whole)
    if pa.types.is_floating(whole.type):
        # pandas stores integers with gaps as floats, and gaps as NaN.
        whole = pc.if_else(pc.is_nan(whole), None, whole)
        integers = pc.if_else(pc.equal(whole, pc.floor(whole)), whole, None)
        if kind != pa.string():
            whole = integers
        elif integers.equals(whole) and (pc.max(pc.abs(whole)).as_py() or 0) < 2**53:
            whole = integers.cast(pa.int64())
    try:
        return whole.cast(kind)
    except pa.ArrowException:
        return pa.array([_converted(value, kind) for value in whole.to_pylist()], kind)


def _as_utf8(column: pa.Array) -> pa.Array:
    """Return valid UTF-8 strings; a broken file may hold any bytes, a table must not."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        kind = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
        values = column.cast(kind).to_pylist()
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
        return pa.array(texts, column.type)
    return column


def _converted(value: object, kind: pa.DataType) -> object:
    if kind == pa.string():
        # With several captions, nothing says which one the vector represents.
        only = value[0] if isinstance(value, list) and len(value) == 1 else value
        return only if isinstance(only, str) else None
    convert: Callable[[object], object] = bool if kind == pa.bool_() else int  # type: ignore[assignment]
    try:
        return convert(value) if isinstance(value, (int, float)) else None
    except (ValueError, OverflowError):
        return None
