"""Inject noise into embeddings: a share of the pairs gets captions of others, or of donors.

This shows, on any corpus and without labels, how known mismatched pairs are scored. The corpus's
own noise stays and counts as clean, so the measurement is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from upath import UPath

from ncclean.base import schema
from ncclean.data.embeddings.pairs import EmbeddedPairs, embedding_dim, read_pairs
from ncclean.data.embeddings.units import vector_keys
from ncclean.data.noise import plan_noise
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ShardError
from ncclean.storage.parts import write_embeddings

_TRUTH = ("is_noisy", "noise_kind")
_STREAM = 3  # of random numbers: `inject-noise` uses the same seed


@dataclass(frozen=True)
class NoisyCopy:
    """A corpus in clip-retrieval's layout, twice: `given` as it was, `noisy` with wrong captions.

    In `noisy`, the share `moved` of the `pairs` has another caption, marked by `is_noisy`; all
    others are marked clean.
    """

    given: str
    noisy: str
    pairs: int
    moved: float


def write_noisy_copy(
    shards: Sequence[ShardRef],
    keys: tuple[str, str] | None,
    folder: UPath,
    *,
    share: float,
    pairs: int,
    seed: int,
    donors: Sequence[ShardRef] = (),
) -> NoisyCopy:
    """Write a sample of a corpus twice below `folder`: as it is, and with wrong captions.

    Captions of `share` of the pairs are permuted among them or, with `donors`, replaced by theirs:
    the kinds `ncr` and `donor` of `ncclean.data.noise`. A pair that gets an equal caption, or
    another one of its own image, is clean. Shards are kept whole, so blocks are those of a scoring
    run. Raises `InputError` if fewer than two pairs can be exchanged, or donors come from another
    model.
    """
    chosen = _read(shards, keys, pairs)
    kind = "donor" if donors else "ncr"
    donor_parts: list[EmbeddedPairs] = []
    if donors:
        has_names = any(shard.layout in ("datacomp", "vectors") for shard in donors)
        donor_keys = vector_keys(donors, keys if has_names else None)
        donor_parts = _read(donors, donor_keys, math.ceil(share * pairs))
    counts = [len(part.image) for part in chosen]
    total = sum(counts)
    donated = sum(len(part.image) for part in donor_parts)
    plan = plan_noise(total, {kind: share}, seed, stream=_STREAM, donors=donated)
    if not plan.is_noisy.any():
        raise InputError(f"{share:.1%} of {total:,} pairs are too few to exchange captions")
    if donor_parts and donor_parts[0].text.shape[1] != chosen[0].text.shape[1]:
        raise InputError(
            f"{donors[0].url} has {donor_parts[0].text.shape[1]} dimensions, and {shards[0].url} "
            f"{chosen[0].text.shape[1]}: both must come from one model"
        )
    text = np.concatenate([part.text for part in (*chosen, *donor_parts)])
    facts = pa.concat_tables(
        [part.facts.filter(pa.array(part.ok)) for part in (*chosen, *donor_parts)]
    )
    captions = facts.column("text").combine_chunks()
    after = captions.take(pa.array(plan.caption_source))
    is_same = pc.equal(after, captions.slice(0, total))
    if not donors:
        uids = facts.column("uid").combine_chunks()
        is_same = pc.or_kleene(is_same, pc.equal(uids.take(pa.array(plan.caption_source)), uids))
    is_noisy = plan.is_noisy & ~pc.fill_null(is_same, False).to_numpy(zero_copy_only=False)
    digits = len(str(len(chosen)))
    start = 0
    for number, (part, count) in enumerate(zip(chosen, counts, strict=True)):
        rows = slice(start, start + count)
        start += count
        source = plan.caption_source[rows]
        metadata = facts.slice(rows.start, count)
        moved = pa.array(is_noisy[rows])
        truth = {
            "text": after.slice(rows.start, count),
            "is_noisy": moved,
            "noise_kind": pc.if_else(moved, kind, None),
        }
        unknown = {name: pa.nulls(count, schema.SCORES.field(name).type) for name in _TRUTH}
        for name, vectors, columns in (
            ("given", text[rows], unknown),
            ("noisy", text[source], truth),
        ):
            table = pa.table(
                {
                    new: columns[old] if old in columns else metadata.column(old)
                    for old, new in schema.EMBEDDING_METADATA_COLUMNS.items()
                }
            )
            write_embeddings(folder / name, f"{number:0{digits}d}", part.image, vectors, table)
    return NoisyCopy(str(folder / "given"), str(folder / "noisy"), total, float(is_noisy.mean()))


def _read(
    shards: Sequence[ShardRef], keys: tuple[str, str] | None, pairs: int
) -> list[EmbeddedPairs]:
    """Read every k-th shard, at least one, for about `pairs` pairs in total."""
    rows = sum(shard.rows[1] - shard.rows[0] for shard in shards if shard.rows is not None)
    step = max(1, -(-rows // pairs))
    usable: list[EmbeddedPairs] = []
    failure = "all of them are empty"
    try:
        dim = embedding_dim(shards, keys)
    except ShardError as error:
        raise InputError(f"no embeddings can be read: {error}") from error
    for shard in shards[::step]:
        try:
            part = read_pairs(shard, keys, dim=dim)
        except ShardError as error:
            failure = str(error)
            continue
        if part.ok.any():
            usable.append(part)
        else:
            failure = part.error or failure
    if not usable:
        raise InputError(f"no embeddings can be read: {failure}")
    return usable
