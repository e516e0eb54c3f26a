"""Options of a scoring run and of a Ray cluster. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ncclean.base.options import (
    MAX_PIXELS,
    CaptionKeys,
    DecodeThreads,
    Option,
    Options,
    Reads,
    Seed,
    parameters,
    usable_cores,
    value_of,
)
from ncclean.errors import InputError

WeightFunction = Literal["high_degree", "linear", "cosine"]
CalibratedOn = Literal["similarity", "neg_clip_loss"]
CalibrateOn = Literal["auto", "similarity", "neg_clip_loss"]
FROM_CORPUS = "corpus"  # instead of a file of word classes: learn them from the captions
WORDS_PER_CAPTION = 3
DEFAULT_BATCH_SIZE = 256
DEFAULT_MODEL, DEFAULT_PRETRAINED = "ViT-B-32", "laion2b_s34b_b79k"
CLIP_SCALE = 100.0  # the clamp of the logit scale in nearly every CLIP's training
DRY_RUN = "Write nothing; estimate the work and the hours."
RAY_ADDRESS = "Ray cluster: `auto`, `HOST:PORT` or `ray://HOST:10001`."
CalibrateBy = Annotated[
    str | None,
    Option(
        "Column, json field or SQL; calibrate each value separately, e.g. `language`.",
        metavar="SQL",
    ),
]
Signals = Annotated[
    Sequence[Literal["language", "image", "text"]] | None,
    Option(
        "More columns: `language` of the caption, `text` (urls, file names, boilerplate, "
        "repetition, digits, words), `image` (blur, brightness, entropy, hashes).",
        commas=True,
    ),
]
Words = Annotated[bool, Option("Find wrong words, and better ones of their class.")]
CaptionParts = Annotated[
    Literal["sentences"] | None,
    Option("`sentences`: find wrong sentences, by comparing each with the image."),
]


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Options):
    """Options of the parts phase of `score`. Raises `InputError` for a value out of range."""

    caption_key: CaptionKeys = None
    batch_size: Annotated[
        int | None,
        Option(
            "Images per forward pass (default: 256; on a GPU, what is fastest there).",
            low=1,
            is_idle=True,
        ),
    ] = None
    block_size: Annotated[
        int, Option("Pairs per block, which ranks and in-batch scores compare.", low=1)
    ] = 2048
    forget_percent: Annotated[
        float, Option("Percentage of pairs in NCU's forget set.", low=0, high=100)
    ] = 10.0
    pool: Annotated[
        int | None,
        Option(
            "For embeddings: how many negatives of neg_clip_loss to draw from the "
            "corpus (its authors: 32768).",
            low=2,
            source="embeddings",
        ),
    ] = None
    canonical: Annotated[
        bool, Option("For embeddings: also compute canonical_similarity.", source="embeddings")
    ] = False
    decode_threads: DecodeThreads = field(default_factory=usable_cores)
    decode_on: Annotated[
        Literal["cpu", "device"],
        Option("Decode JPEGs on the `cpu` or the `device` (GPU).", source="images"),
    ] = "cpu"
    draft: Annotated[
        bool,
        Option(
            "Decode large JPEGs at a fraction of their size: faster, but cosines change slightly.",
            source="images",
        ),
    ] = False
    max_pixels: Annotated[
        int,
        Option("Maximum pixels of an image; larger ones get no scores.", low=1, source="images"),
    ] = MAX_PIXELS
    exif: Annotated[
        bool, Option("Turn images upright, as the EXIF of phones says.", source="images")
    ] = True
    embeddings: Annotated[
        str | None,
        Option("Also write embeddings here, in clip-retrieval's layout.", inside="embeddings"),
    ] = None
    calibrate_by: CalibrateBy = None
    signals: Signals = None
    columns: Annotated[
        Sequence[str] | None,
        Option(
            "Your function that computes columns.",
            metavar="MODULE:FUNCTION",
            names_code=True,
            reads=Reads.FUNCTION,
        ),
    ] = None
    head: Annotated[
        Sequence[str] | None,
        Option(
            "Column from a linear layer or MLP on the image embedding.",
            metavar="NAME=FILE",
            reads=Reads.NAMED,
        ),
    ] = None
    words: Words = False
    word_classes: Annotated[
        str | None,
        Option(
            "Word classes of --words: a file, or `corpus` to learn them (default: "
            "an English list).",
            metavar="FILE|corpus",
            reads=Reads.NAME_OR_FILE,
        ),
    ] = None
    words_per_caption: Annotated[
        int, Option("With --words: variants of each caption to encode.", low=1, high=64)
    ] = WORDS_PER_CAPTION
    caption_parts: CaptionParts = None
    text: Annotated[bool, Option("Write the captions to the table.")] = True
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decode_on == "device" and "image" in (self.signals or ()):
            raise InputError("--signals image needs the images on the CPU: use --decode-on cpu")
        if self.draft and "image" in (self.signals or ()):
            raise InputError("--signals image needs whole images: leave --draft out")
        if self.draft and self.decode_on == "device":
            raise InputError("--draft needs --decode-on cpu: a GPU's decoder has none")
        if not self.words and self.word_classes is not None:
            raise InputError("--word-classes needs --words")
        if not self.words and self.words_per_caption != WORDS_PER_CAPTION:
            raise InputError("--words-per-caption needs --words")

    @property
    def learns_boilerplate(self) -> bool:
        """Whether `--signals text` learns the boilerplate of the captions."""
        return "text" in (self.signals or ())

    @property
    def learns_words(self) -> bool:
        """Whether the word classes of `--words` are learnt from the captions."""
        return self.words and self.word_classes == FROM_CORPUS

    def result_options(self) -> dict[str, Any]:
        """The options of `score` that change its table, by name."""
        return {
            parameter.name: value_of(self, parameter)
            for parameter in parameters(type(self)).values()
            if not parameter.option.is_idle
        }


@dataclass(frozen=True, kw_only=True)
class TaskOptions(Options):
    """The engine of a command's tasks. Raises `InputError` for options that do not go together."""

    engine: Annotated[
        Literal["auto", "local", "ray"],
        Option(
            "`local` or `ray`; `auto` is `ray` with --ray-address, or to score on several GPUs.",
            is_idle=True,
        ),
    ] = "auto"
    workers: Annotated[
        int | None,
        Option(
            "Processes, or tasks at a time on Ray (default: one per core).", low=1, is_idle=True
        ),
    ] = None
    ray_address: Annotated[str | None, Option(RAY_ADDRESS, is_idle=True)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine == "local" and self.ray_address is not None:
            raise InputError("--ray-address needs --engine ray")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """Ray cluster and its division into workers; None is decided from the cluster.

    Raises `InputError` for a number out of range.
    """

    address: Annotated[str | None, Option(RAY_ADDRESS, name="ray_address", is_idle=True)] = None
    workers: Annotated[
        int | None, Option("Ray workers (default: as many as fit).", low=1, is_idle=True)
    ] = None
    gpus_per_worker: Annotated[
        float | None, Option("GPUs of a Ray worker; may be a fraction.", low=0, is_idle=True)
    ] = None
    cpus_per_worker: Annotated[
        float | None, Option("Cores of a Ray worker.", low=0, is_idle=True)
    ] = None
    decoders_per_worker: Annotated[
        int | None,
        Option("Decoders of a Ray worker (default: one per core of it).", low=1, is_idle=True),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """Options of the calibration: OSA's boundary and weight, and the calibrated score."""

    shift: str | float = "auto"
    osa_function: WeightFunction = "high_degree"
    calibrate_on: CalibrateOn = "auto"


def parse_shift(value: str | float) -> str | float:
    """Parse `--shift`: `auto`, `noise`, `shuffled` or a number in [-1, 1]. Raises `InputError`."""
    if value in ("auto", "noise", "shuffled"):
        return value
    try:
        number = float(value)
    except ValueError:
        raise InputError(
            f"--shift takes auto, noise, shuffled or a number, got {value!r}"
        ) from None
    if not -1 <= number <= 1:
        raise InputError(f"--shift takes a cosine between -1 and 1, got {value}")
    return number


def parse_scale(value: str | float | None) -> str | float | None:
    """Parse `--scale`: a positive number, or the name of a model. Raises `InputError`."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return value
    if not 0 < number < float("inf"):
        raise InputError(f"--scale takes a positive number or a model, got {value}")
    return number


def parse_keys(text: str | None) -> tuple[str, str] | None:
    """Split `IMG,TEXT`, the names of image and caption vectors. Raises `InputError`."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise InputError(f"--embedding-keys takes two names, as in l14_img,l14_txt, got {text!r}")
    return names[0], names[1]


def parse_memory(text: str | None) -> int | None:
    """Convert a size such as `4GB` to bytes, None to None. Raises `InputError`."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if match is None:
        raise InputError(f"--memory-limit takes a size such as 4GB, got {text!r}")
    power = " KMGT".index(match[2].upper() or " ")
    return int(float(match[1]) * 1000**power)
