"""Embed evaluation sets: the one place where images and captions meet a model.

An evaluation takes an `EmbeddingSpace`: an `Estimator`, or heads on top of one. Everything after
this module treats them alike.
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ncclean.base import stores
from ncclean.data.benchmark_sets import is_retrieval_set
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.decoding import decoded_shard
from ncclean.data.samples import Sample, SkipReason
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.errors import InputError
from ncclean.evaluation.options import EmbeddingOptions
from ncclean.models.weights import finite_embeddings

# Batches that the model may have in progress.
_BATCHES_IN_FLIGHT = 2
_UNLABELLED = (SkipReason.CAPTION_MISSING, SkipReason.CAPTION_NOT_TEXT)


class EmptySetError(InputError):
    """The error of a set without a usable image; `counts` are the reasons as text."""

    def __init__(self, where: str, counts: str) -> None:
        super().__init__(f"{where} has no usable image ({counts or 'it is empty'})")
        self.counts = counts


class EmbeddingSpace(Protocol):
    """A map of images and captions to (n, d) L2-normalised float32 embeddings, such as a model."""

    @property
    def preprocessing(self) -> Preprocessing: ...

    def start_image(self, pixels: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to embed uint8 (3, H, W) crops; return a function that waits for the result."""
        ...

    def encode_text(self, captions: Sequence[str], batch_size: int) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """N embedded images: `image` (N, d) with their `keys`; `skipped` counts unusable samples."""

    keys: list[str]
    image: torch.Tensor
    skipped: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class EmbeddedImages(Embedded):
    """Embedded images, with the annotation and all captions of each.

    Keys are without the names of the shards. `same` (N,) has the number of the first image of the
    same file: the rows of an image may lie in several shards of a table.
    """

    same: list[int]
    notes: list[str]
    sample_keys: list[str]
    captions: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class EmbeddedPairs(Embedded):
    """Embedded images and M captions: `text` (M, d), and their images `text_to_image` (M,)."""

    text: torch.Tensor
    text_to_image: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class EmbeddedClasses(Embedded):
    """Embedded images with the `labels` (N,) int64 of their classes.

    Keys are without the names of the shards.
    """

    labels: torch.Tensor
    sample_keys: list[str]


def embed_dataset(
    space: EmbeddingSpace,
    shards: Sequence[ShardRef],
    options: EmbeddingOptions,
    captions_per_image: int | None = None,
) -> EmbeddedPairs:
    """Embed images and captions; in tars of retrieval sets, each line of a text is a caption.

    Only the first `captions_per_image` captions count. Elsewhere a caption may have several lines.

    Raises `InputError` if a shard cannot be read or has no usable image, `ModelError` if the
    embeddings are not finite.
    """
    folders = {stores.location(shard.url).parent for shard in shards if shard.layout == WEBDATASET}
    of_sets = {folder for folder in folders if is_retrieval_set(folder.parent)}
    by_line = {shard for shard in shards if stores.location(shard.url).parent in of_sets}
    embedded = embed_images(space, shards, options, by_line=by_line)
    texts_of: dict[int, list[str]] = {}
    for number, stated in zip(embedded.same, embedded.captions, strict=True):
        texts_of.setdefault(number, []).extend(stated)
    captions = [
        [text.strip() for text in texts if text.strip()][:captions_per_image]
        for texts in texts_of.values()
    ]
    owners = [number for number, texts in enumerate(captions) for _ in texts]
    text = space.encode_text([text for texts in captions for text in texts], options.batch_size)
    return EmbeddedPairs(
        keys=[embedded.keys[number] for number in texts_of],
        image=embedded.image[list(texts_of)],
        text=finite_embeddings(text, "captions"),
        text_to_image=torch.tensor(owners),
        skipped=embedded.skipped,
    )


def embed_classes(
    space: EmbeddingSpace,
    shards: Sequence[ShardRef],
    classes: int,
    options: EmbeddingOptions,
    label: str = "cls",
) -> EmbeddedClasses:
    """Embed the images of a classification set; the member or column `label` numbers their classes.

    Raises what `embed_dataset` raises, and `InputError` for an image without a label or with one
    that is not below `classes`.
    """
    embedded = embed_images(space, shards, options, annotation=label)
    labels = []
    for key, note, stated in zip(embedded.keys, embedded.notes, embedded.captions, strict=True):
        if len(set(stated)) > 1:
            raise InputError(f"sample {key} has several classes: {', '.join(stated)[:80]}")
        try:
            number = int(note)
        except ValueError:
            raise InputError(
                f"the .{label} of sample {key} is not a number: {note[:40]!r}"
            ) from None
        if not 0 <= number < classes:
            raise InputError(
                f"sample {key} has class {number}, but the names of the classes end at "
                f"{classes - 1}"
            )
        labels.append(number)
    return EmbeddedClasses(
        keys=embedded.keys,
        image=embedded.image,
        labels=torch.tensor(labels),
        skipped=embedded.skipped,
        sample_keys=embedded.sample_keys,
    )


def embed_images(
    space: EmbeddingSpace,
    shards: Sequence[ShardRef],
    options: EmbeddingOptions,
    annotation: str | None = None,
    keep: Callable[[ShardRef, Sample], bool] | None = None,
    by_line: Container[ShardRef] = (),
) -> EmbeddedImages:
    """Embed every usable image of the shards; return its caption or member `annotation`, too.

    `keep` selects samples; the others are skipped and not counted. In shards `by_line`, each line
    of a text is a caption.

    Raises what `embed_dataset` raises, and `InputError` for an image without `annotation`. A
    missing label is an error in the data set; an image without a caption is skipped.
    """
    keys: list[str] = []
    same: list[int] = []
    files: dict[tuple[str, str, str], int] = {}
    notes: list[str] = []
    sample_keys: list[str] = []
    captions: list[list[str]] = []
    pixels: list[torch.Tensor] = []
    skipped: Counter[str] = Counter()
    begun: deque[Callable[[], torch.Tensor]] = deque()
    batches: list[torch.Tensor] = []
    decoder = ImageDecoder(space.preprocessing, exif=False)
    for shard in shards:
        is_kept = None if keep is None else functools.partial(keep, shard)
        stream = decoded_shard(shard, decoder, options.decode_threads, annotation, is_kept)
        for decoded in stream:
            sample = decoded.sample
            key = f"{shard.name}/{sample.key}"
            if annotation is not None and sample.status in _UNLABELLED:
                raise InputError(f"sample {key} of {shard.url} has no .{annotation}")
            if decoded.pixels is None:
                skipped[sample.status.value] += 1
                continue
            number = len(keys)
            if (path := sample.place.image_path) is not None:
                number = files.setdefault((shard.url, sample.key, path), number)
            same.append(number)
            keys.append(key)
            notes.append(sample.caption or "")
            sample_keys.append(sample.key)
            texts = [c.text for c in sample.captions if c.text is not None]
            if shard in by_line:
                texts = [line for text in texts for line in text.split("\n")]
            captions.append(texts)
            pixels.append(decoded.pixels)
            if len(pixels) == options.batch_size:
                begun.append(space.start_image(torch.stack(pixels)))
                pixels = []
            if len(begun) > _BATCHES_IN_FLIGHT:
                batches.append(begun.popleft()())
        if stream.error is not None:
            raise InputError(f"{shard.url} {stream.error}")
    if pixels:
        begun.append(space.start_image(torch.stack(pixels)))
    batches += [result() for result in begun]
    if not batches:
        counts = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        where = shards[0].url if shards else "the set"
        raise EmptySetError(where, counts)
    image = finite_embeddings(torch.cat(batches), "images")
    return EmbeddedImages(
        keys=keys,
        image=image,
        same=same,
        notes=notes,
        skipped=dict(skipped),
        sample_keys=sample_keys,
        captions=captions,
    )
