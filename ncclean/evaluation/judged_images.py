"""The images that people judged, out of any source of images, as embeddings."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ncclean.base.stores import absolute
from ncclean.data.images.folders import Folder
from ncclean.data.images.resolve import resolve_images
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import is_image
from ncclean.data.samples import Sample
from ncclean.data.shards import ShardRef
from ncclean.data.sources import resolve_pairs
from ncclean.errors import InputError
from ncclean.evaluation.embedding import EmbeddedImages, EmbeddingSpace, EmptySetError, embed_images
from ncclean.evaluation.options import EmbeddingOptions


@dataclass(frozen=True)
class JudgedImages:
    """`row` of `image` (K, d) by the name that the judgements have for it.

    `captions` are those that the source has for each image by name, none for a folder of images.
    `missing` counts the images that could not be had, by reason.
    """

    row: dict[str, int]
    image: torch.Tensor
    captions: dict[str, frozenset[str]]
    missing: dict[str, int]


def embed_judged(
    space: EmbeddingSpace,
    sources: Sequence[str],
    names: Sequence[str],
    options: EmbeddingOptions,
    source_options: SourceOptions | None = None,
) -> JudgedImages:
    """Embed the images of these names, and no others.

    A name is a path in a folder of images, whose captions do not matter. In other sources it is
    the key of the sample, or the last part of it, with or without the ending of the file. Raises
    what `embed_images` raises, and `InputError` for a name that two samples have.
    """
    shards = resolve_pairs(sources, source_options)
    if shards and all(shard.layout == Folder.name for shard in shards):
        return _in_folders(space, sources, names, options)
    wanted = {plain_name(name): name for name in names}
    last = [plain.rpartition("/")[2] for plain in wanted]
    counts = Counter(last)  # of a/1 and b/1, a key 1 tells neither
    short = {name: plain for name, plain in zip(last, wanted, strict=True) if counts[name] == 1}

    def is_wanted(shard: ShardRef, sample: Sample) -> bool:
        return sample.key in wanted or sample.key.rpartition("/")[2] in short

    with _named_if_none(sources[0], names[0]):
        embedded = embed_images(space, shards, options, keep=is_wanted)
    row: dict[str, int] = {}
    by_last: dict[str, int] = {}
    for number, key in enumerate(embedded.sample_keys):
        if (name := wanted.get(key)) is not None:
            _put(row, name, number, embedded)
        else:
            _put(by_last, wanted[short[key.rpartition("/")[2]]], number, embedded)
    return _judged({**by_last, **row}, embedded, names)


def plain_name(name: str) -> str:
    """The name without the ending of an image file, as the key of a sample has it."""
    stem, dot, ending = name.rpartition(".")
    return stem if dot and is_image(ending.lower()) else name


def _in_folders(
    space: EmbeddingSpace, folders: Sequence[str], names: Sequence[str], options: EmbeddingOptions
) -> JudgedImages:
    """Read listed images only: what else is in a folder need not be read."""
    if len(folders) != 1:
        raise InputError(f"name one folder of images, not {len(folders)}")
    with tempfile.TemporaryDirectory(prefix="ncclean-") as scratch:
        listed = Path(scratch, "judged.jsonl")
        rows = ({"key": n, "file_name": n, "text": "-"} for n in dict.fromkeys(names))
        listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
        root = SourceOptions(image_root=absolute(folders[0]))
        shards = resolve_images([str(listed)], root)
        with _named_if_none(folders[0], names[0]):
            embedded = embed_images(space, shards, options)
    row = {name: number for number, name in enumerate(embedded.sample_keys)}
    judged = _judged(row, embedded, names)
    return JudgedImages(judged.row, judged.image, {}, judged.missing)


@contextmanager
def _named_if_none(source: str, name: str) -> Iterator[None]:
    """Say which images were looked for where none of them can be used."""
    try:
        yield
    except EmptySetError as error:
        counts = f" ({error.counts})" if error.counts else ""
        raise InputError(
            f"{source} has none of the judged images, such as {name}{counts}"
        ) from None


def _put(rows: dict[str, int], name: str, number: int, embedded: EmbeddedImages) -> None:
    if (other := rows.setdefault(name, number)) != number:
        raise InputError(
            f"{name} may be {embedded.keys[other]} or {embedded.keys[number]}: name the folder or "
            "the shards of one of them"
        )


def _judged(row: dict[str, int], embedded: EmbeddedImages, names: Sequence[str]) -> JudgedImages:
    captions = {
        name: frozenset(" ".join(text.split()) for text in embedded.captions[number])
        for name, number in row.items()
    }
    missing = Counter(embedded.skipped)
    absent = len(set(names)) - len(row) - missing.total()
    if absent > 0:
        missing["not_in_source"] += absent
    return JudgedImages(row, embedded.image, captions, dict(missing))
