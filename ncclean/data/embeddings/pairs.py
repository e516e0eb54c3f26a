"""Read the pairs of a shard of embeddings: unit vectors, the facts of each pair, its problems.

Every row of metadata has a row here. `ncclean score` and `ncclean neighbours` both read pairs this
way, so the uids of their tables agree.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ncclean.data.embeddings.facts import SOURCES, facts_of, first_equal
from ncclean.data.embeddings.layout import Keys, Vectors
from ncclean.data.embeddings.units import LAYOUTS
from ncclean.data.parquet_table import read_table
from ncclean.data.samples import CaptionKeys, SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

# Rounding a unit vector to float16 changes its length by less.
_UNIT_TOLERANCE = 1e-3
_PIECE_ROWS = 4096


@dataclass
class EmbeddedPairs:
    """The n pairs of a shard of embeddings, with vectors of the m pairs that are `ok`.

    `image` and `text` are (m, d) floats of length 1: as stored if already normalised up to
    float16's rounding, else normalised in float32. `facts` has n rows: uid, shard, key, row,
    caption_number, caption_key, text, url, width, height, is_noisy and noise_kind as the score
    table has them; `metadata` has the further columns requested. Both carry the fingerprints of the
    shards that the pairs are from. `problems` says by row why a pair has no vectors. `error` is set
    if a file is invalid: then all pairs are problems. Vectors of a local `.npy` that are returned
    as stored are memory-mapped.
    """

    facts: pa.Table
    metadata: pa.Table
    ok: np.ndarray
    image: np.ndarray
    text: np.ndarray
    problems: dict[int, tuple[SkipReason, str]] = field(default_factory=dict)
    error: str | None = None


def read_pairs(
    shard: ShardRef,
    keys: Keys | None,
    *,
    dim: int | None = None,
    caption_key: CaptionKeys = None,
    further: Sequence[str] = (),
) -> EmbeddedPairs:
    """Read the vectors and the facts of a shard of embeddings, row by row.

    `keys` are the names of the vectors, `dim` is their required width, `caption_key` lists names of
    the caption in the metadata (the first that exists counts), `further` are columns to keep in
    `metadata`. Raises `ShardError` if the metadata cannot be read: then nothing is known about any
    pair.
    """
    sources = dict(SOURCES)
    if caption_key is not None:
        sources["text"] = (caption_key,) if isinstance(caption_key, str) else tuple(caption_key)
    names = [name for several in sources.values() for name in several]
    layout = LAYOUTS[shard.layout]
    wanted = dict.fromkeys([*names, *layout.columns(keys), *further])
    table = read_table(shard.url, list(wanted), shard.rows)
    metadata = table.select([name for name in further if name in table.column_names])
    try:
        vectors = layout.read(shard, table, keys)
        _check_shapes(shard, vectors, len(table), dim)
    except ShardError as error:
        return _all_missing(facts_of(table, shard, sources), metadata, str(error))
    problems: dict[int, tuple[SkipReason, str]] = {}
    sides = [
        unit_vectors(matrix, what, lengths, problems)
        for (matrix, lengths), what in zip(vectors, ("image", "caption"), strict=True)
    ]
    facts = facts_of(table, shard, sources, sides[0]).replace_schema_metadata(table.schema.metadata)
    ok = np.ones(len(table), dtype=bool)
    ok[list(problems)] = False
    if problems:
        sides = [side[ok] for side in sides]
    image, text = sides
    return EmbeddedPairs(facts, metadata, ok, image, text, problems)


def embedding_dim(shards: Sequence[ShardRef], keys: Keys | None) -> int:
    """Return the embedding width of the first shard whose images and captions agree on it.

    If none agrees, that of the first readable shard. Raises `ShardError` if none can be read.
    """
    failure: ShardError | None = None
    disputed = 0
    for shard in shards:
        try:
            image, text = LAYOUTS[shard.layout].dimensions(shard, keys)
        except ShardError as error:
            failure = failure or error
        else:
            if image == text != 0:
                return image
            disputed = disputed or image or text
    if disputed:
        return disputed
    raise failure or ShardError("all files are empty")


def _check_shapes(
    shard: ShardRef, vectors: tuple[Vectors, Vectors], rows: int, dim: int | None
) -> None:
    image, text = (matrix for matrix, _ in vectors)
    for matrix, what in ((image, "image"), (text, "caption")):
        if len(matrix) != rows:
            raise ShardError(f"{shard.url} has {rows:,} rows for {len(matrix):,} {what} embeddings")
    if rows and image.shape[1] != text.shape[1]:
        raise ShardError(
            f"{shard.url} has {image.shape[1]} dimensions for images, {text.shape[1]} for captions"
        )
    if rows and dim is not None and image.shape[1] != dim:
        raise ShardError(
            f"{shard.url} has {image.shape[1]} dimensions, the shards before it {dim}: all must "
            "come from one model"
        )


def _all_missing(facts: pa.Table, metadata: pa.Table, reason: str) -> EmbeddedPairs:
    nothing = np.empty((0, 1), np.float32)
    problem = SkipReason.EMBEDDING_MISSING, reason
    problems = dict.fromkeys(range(len(facts)), problem)
    ok = np.zeros(len(facts), dtype=bool)
    return EmbeddedPairs(facts, metadata, ok, nothing, nothing, problems, reason)


def unit_vectors(
    matrix: np.ndarray,
    what: str,
    lengths: np.ndarray | None,
    problems: dict[int, tuple[SkipReason, str]],
) -> np.ndarray:
    """Normalise (n, d) rows to length 1; record in `problems` the rows that cannot be."""
    dim = matrix.shape[1]
    pieces = [matrix[at : at + _PIECE_ROWS] for at in range(0, len(matrix), _PIECE_ROWS)]
    lengths_squared = [_squared(_float32(piece)) for piece in pieces]
    norms = np.sqrt(np.concatenate([np.empty(0, np.float32), *lengths_squared]))
    for row in np.flatnonzero(~np.isfinite(norms)).tolist():
        length = dim if lengths is None else int(lengths[row])
        if length < 0:
            problem = SkipReason.EMBEDDING_MISSING, f"no {what} embedding"
        elif length != dim:
            problem = SkipReason.EMBEDDING_CORRUPT, f"{what}: {length} dimensions, others {dim}"
        else:
            problem = SkipReason.EMBEDDING_CORRUPT, f"{what}: NaN or infinite values"
        problems.setdefault(row, problem)
    for row in np.flatnonzero(norms == 0).tolist():
        problems.setdefault(row, (SkipReason.EMBEDDING_CORRUPT, f"{what}: all values are 0"))
    usable = np.isfinite(norms) & (norms > 0)
    if (np.abs(norms[usable] - 1) <= _UNIT_TOLERANCE).all():
        return matrix
    divisors = np.where(usable, norms, 1).astype(np.float32)[:, None]
    return np.concatenate(
        [
            _float32(piece) / divisors[at * _PIECE_ROWS :][: len(piece)]
            for at, piece in enumerate(pieces)
        ]
    )


def _float32(rows: np.ndarray) -> np.ndarray:
    """Convert rows to float32; with torch, if loaded, six times as fast."""
    torch = sys.modules.get("torch")
    if torch is None or rows.dtype != np.float16 or not rows.flags.writeable:
        return rows.astype(np.float32, copy=False)
    return np.asarray(torch.from_numpy(rows).float().numpy())


def _squared(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("nd,nd->n", rows, rows))


def images_of(facts: pa.Table) -> np.ndarray | None:
    """Return (n,) image numbers of pairs, equal for captions of one image; None if all differ.

    A file of many shards may have the same keys again and again: the uid and the row tell the
    images apart, as in a selection.
    """
    if not pc.any(pc.not_equal(facts.column("caption_number"), 0)).as_py():
        return None
    names = ("uid", "shard", "key", "row")
    return first_equal([facts.column(name).combine_chunks() for name in names])
