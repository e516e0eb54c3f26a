"""Options of the training loader and of rendered corpora. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from ncclean.base.options import CaptionKeys, DecodeThreads, Option, Options, usable_cores

SourceFormat = Literal["auto", "webdataset", "images", "embeddings"]
Captions = Literal["all", "best", "sample"]


Split = Literal["train", "restval", "val", "test"]
_SPLIT = Option(
    "Split of Karpathy's, COCO's or NPC's files, or of Arrow's folders (default: all).",
    source="images",
    shows_default=False,
)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """Options about a source of images: where they are, which are meant, and the splits to read."""

    image_root: Annotated[
        str | None,
        Option(
            "Folder that the images of a table, and what links lead to, lie below (default: the "
            "table's).",
            source="images",
        ),
    ] = None
    split: Annotated[Sequence[Split], _SPLIT] = ()
    image_key: Annotated[
        str | None,
        Option(
            "Extension, column or field of the image, such as `depth.png` or `images[0]`, where "
            "a sample has several (default: the one named like its key, else the first).",
            source="images",
            shows_default=False,
        ),
    ] = None
    class_template: Annotated[
        str | None,
        Option(
            "Caption for class folders, such as `a photo of a {}`; {} is the folder's name.",
            source="images",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_key is not None:  # names of members and columns are read in lower case
            key = self.image_key.strip().lower().removeprefix(".")
            object.__setattr__(self, "image_key", key)


@dataclass(frozen=True, kw_only=True)
class TrainingSourceOptions(SourceOptions):
    """The options of `SourceOptions` for training, where `--split` has another meaning.

    Until the next version, `--split` is NCU's `--forget-by`.
    """

    split: Annotated[Sequence[Split], replace(_SPLIT, name="source_split")] = ()


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(Options):
    """Options of the batches for training. Raises `InputError` for a number out of range.

    `batch_size` is per rank. `chunk` encoded samples are shuffled together; three times as many are
    held. Without `augment`, images are cropped as an estimator sees them. Without `drop_last`, the
    last batch of an epoch is smaller, equally on all ranks.
    """

    augment: Annotated[bool, Option("Random crops, as open_clip trains.")] = True
    decode_threads: DecodeThreads = field(default_factory=usable_cores)
    caption_key: CaptionKeys = None
    captions: Annotated[
        Captions,
        Option(
            "Of an image's captions, train on `all`, the `best`, or a `sample` per epoch; without "
            "--selection, always a sample."
        ),
    ] = "all"
    chunk: Annotated[
        int, Option("Encoded samples that are shuffled together.", low=1, is_listed=False)
    ] = 8192
    batch_noise: Annotated[
        float, Option("Share of captions to permute in each batch, for experiments.", low=0, high=1)
    ] = 0.0
    shuffle: Annotated[bool, Option("Shuffle the pairs in each epoch.", is_listed=False)] = True
    drop_last: Annotated[bool, Option("Leave out an incomplete batch.", is_listed=False)] = True
    batch_size: int = 256
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(Options):
    """Options of a synthetic corpus; shares refer to all pairs.

    `noise` has the shares of the kinds of noise, see `ncclean.data.noise`. Raises `InputError` for
    a value out of range.
    """

    pairs: Annotated[int, Option("Pairs to render.", low=1)] = 20_000
    broken: Annotated[float, Option("Share of samples that cannot be scored.", low=0, high=1)] = 0.0
    duplicates: Annotated[
        float, Option("Share of near-duplicates of earlier pairs.", low=0, high=1)
    ] = 0.01
    shard_size: Annotated[int, Option("Pairs per shard.", low=1)] = 1000
    sentences: Annotated[int, Option("Sentences per caption.", low=1, high=100)] = 1
    noise: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    @property
    def shards(self) -> int:
        return -(-self.pairs // self.shard_size)
