"""Gather facts from a corpus before scoring, with which every pair is compared.

From embeddings come the pool of `ncclean.scoring.pool` and the projections of
`ncclean.scoring.canonical`, by a pass over all of them; from a sample of captions come the word
classes of `ncclean.data.learnt_word_classes` and the boilerplate of `ncclean.data.text_signals`.
They are stored with the run, whose workers read them; a growing run keeps them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.config import ScoreOptions
from ncclean.base.formats import counted
from ncclean.base.text_files import read_text
from ncclean.data.captions import read_texts
from ncclean.data.embeddings.pairs import EmbeddedPairs, read_pairs
from ncclean.data.learnt_word_classes import CAPTIONS, learn_word_classes
from ncclean.data.samples import CaptionKeys
from ncclean.data.shards import ShardRef
from ncclean.data.text_signals import learn_boilerplate
from ncclean.data.word_classes import WordClasses
from ncclean.errors import InputError, ShardError
from ncclean.scoring.canonical import PAIRS_A_DIMENSION, Moments, Projection, halves
from ncclean.scoring.pool import Pool, sample_numbers
from ncclean.storage.array_files import ArrayFolder, Arrays
from ncclean.storage.layout import BOILERPLATE, CANONICAL, POOL, WORD_CLASSES

_SHARDS = 64  # to take captions from, if shards are equally large


@dataclass(frozen=True)
class CorpusFacts:
    """Facts about the whole corpus that options request, each None or empty if not requested.

    `projections` are for the pairs of either half, each fitted to the other half.
    """

    pool: Pool | None = None
    projections: tuple[Projection, Projection] | None = None
    word_classes: WordClasses | None = None
    boilerplate: tuple[str, ...] = ()

    @classmethod
    def load(cls, work: str, options: ScoreOptions) -> CorpusFacts:
        """Load a run's facts about the whole corpus. Raises `InputError` if they cannot be read."""
        folder = ArrayFolder(work)
        pool = projections = word_classes = None
        boilerplate: list[str] = []
        if options.learns_words:
            word_classes = WordClasses.of_lines(_lines(work, WORD_CLASSES))
        if options.learns_boilerplate:
            boilerplate = _lines(work, BOILERPLATE)
        if options.pool is not None:
            arrays = _load(folder, POOL)
            image, text = (
                torch.from_numpy(arrays[n].astype(np.float32)) for n in ("image", "text")
            )
            pool = Pool(image, text, arrays["samples"])
        if options.canonical and (arrays := _load(folder, CANONICAL)):
            first, second = (
                Projection(
                    **{name: arrays[f"{half}.{name}"] for name in Projection.__annotations__}
                )
                for half in ("0", "1")
            )
            projections = first, second
        return cls(pool, projections, word_classes, tuple(boilerplate))


def gather_facts(
    work: UPath,
    shards: Sequence[ShardRef],
    keys: tuple[str, str] | None,
    dim: int,
    options: ScoreOptions,
) -> str | None:
    """Compute the facts about the whole corpus that options need and the run lacks.

    The pool has the pairs whose sample has the smallest hash, captions of one image in their order:
    the same for every order of the shards. Raises `InputError` if no pair can be read.
    """
    folder = ArrayFolder(str(work))
    wants_pool = options.pool is not None and not _names(folder, POOL)
    wants_halves = options.canonical and not _names(folder, CANONICAL)
    if not wants_pool and not wants_halves:
        return None
    drawn: Arrays = {}
    moments = Moments(dim), Moments(dim)
    for shard in shards:
        try:
            pairs = read_pairs(shard, keys, dim=dim)
        except ShardError:
            continue  # reported when it is scored
        if not pairs.ok.any():
            continue
        if wants_pool and options.pool is not None:
            drawn = _smallest(drawn, _drawn(pairs, options.pool), options.pool)
        if wants_halves:
            _add(moments, pairs, shard.name)
    if wants_pool:
        if not drawn:
            raise InputError("no pair of the corpus can be read, so there is no pool for --pool")
        _save(folder, POOL, drawn)
    return _save_projections(folder, moments) if wants_halves else None


def gather_word_classes(
    work: UPath, shards: Sequence[ShardRef], caption_key: CaptionKeys
) -> str | None:
    """Learn the word classes of a run that has none yet, and log them.

    The captions are the first ones of shards in the order of their names' hashes, so the order of
    the shards does not matter.
    """
    path = work / WORD_CLASSES
    if stores.ask("read", path, path.exists):
        return None
    classes = learn_word_classes(_captions(shards, caption_key))
    _write_lines(path, classes.lines())
    if not classes.classes:
        return "no two words of the captions occur in the same places often enough for --words"
    return f"{len(classes.entries):,} words in {len(classes.classes):,} word classes: {path}"


def gather_boilerplate(
    work: UPath, shards: Sequence[ShardRef], caption_key: CaptionKeys
) -> str | None:
    """Learn the boilerplate of the captions of a run that has none yet, and log how much it is.

    Uses the same captions as word classes.
    """
    path = work / BOILERPLATE
    if stores.ask("read", path, path.exists):
        return None
    boilerplate = learn_boilerplate(_captions(shards, caption_key))
    _write_lines(path, boilerplate)
    return f"{counted(len(boilerplate), 'text')} of boilerplate: {path}"


def _lines(work: str, name: str) -> list[str]:
    return read_text(str(stores.location(work) / name)).splitlines()


def _write_lines(path: UPath, lines: Iterable[str]) -> None:
    with published(path) as aside:
        aside.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _captions(shards: Sequence[ShardRef], caption_key: CaptionKeys) -> Iterator[str]:
    """Yield captions of shards in hash order, the first of each; broken shards have none."""

    def digest(shard: ShardRef) -> bytes:
        return hashlib.blake2b(shard.name.encode(), digest_size=8).digest()

    most = -(-CAPTIONS // min(len(shards), _SHARDS)) if shards else 0
    for shard in sorted(shards, key=digest):
        with contextlib.suppress(ShardError):
            yield from itertools.islice(read_texts(shard, caption_key), most)


def _save(folder: ArrayFolder, fact: str, arrays: Arrays) -> None:
    """Save facts under a name of their content: nodes keep copies, and a run may restart."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays.values():
        digest.update(np.ascontiguousarray(array).data)
    folder.save(f"{fact}-{digest.hexdigest()}", arrays)


def _load(folder: ArrayFolder, fact: str) -> Arrays:
    names = _names(folder, fact)
    if not names:
        raise InputError(f"{folder.place} has no {fact}; use --overwrite to score again")
    return folder.load(names[0])


def _names(folder: ArrayFolder, fact: str) -> list[str]:
    return sorted(name for name in folder.names() if name.startswith(f"{fact}-"))


def _save_projections(folder: ArrayFolder, moments: tuple[Moments, Moments]) -> str | None:
    fitted = [Projection.fit(half) for half in reversed(moments)]
    named = {
        f"{half}.{name}": array
        for half, projection in enumerate(fitted)
        if projection is not None
        for name, array in projection.__dict__.items()
    }
    _save(folder, CANONICAL, named if None not in fitted else {})
    if None not in fitted:
        return None
    fewest, dim = min(half.pairs for half in moments), moments[0].dim
    return (
        f"canonical_similarity is null: of {dim} dimensions it needs {PAIRS_A_DIMENSION * dim:,} "
        f"pairs in each half of the corpus, and one has {fewest:,}"
    )


def _add(moments: tuple[Moments, Moments], pairs: EmbeddedPairs, shard: str) -> None:
    ok = pairs.facts.filter(pairs.ok)
    half = halves(ok.column("shard").to_pylist(), np.asarray(ok.column("row")))
    digest = hashlib.blake2b(shard.encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    for half_moments, rows in zip(moments, (~half, half), strict=True):
        half_moments.add(pairs.image[rows], pairs.text[rows], rng)


def _drawn(pairs: EmbeddedPairs, size: int) -> Arrays:
    """Return the pairs of a shard that may be in the pool."""
    ok = pairs.facts.filter(pairs.ok)
    numbers = sample_numbers(ok.column("uid").to_pylist())
    captions = np.asarray(ok.column("caption_number")).astype(np.uint64)
    smallest = np.lexsort((captions, numbers))[:size]
    return {
        "samples": numbers[smallest],
        "captions": captions[smallest],
        "image": pairs.image[smallest].astype(np.float16),
        "text": pairs.text[smallest].astype(np.float16),
    }


def _smallest(mine: Arrays, others: Arrays, size: int) -> Arrays:
    if not mine:
        return others
    both = {name: np.concatenate([mine[name], others[name]]) for name in mine}
    smallest = np.lexsort((both["captions"], both["samples"]))[:size]
    return {name: array[smallest] for name, array in both.items()}
