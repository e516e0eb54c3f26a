"""Options of a scoring run and of a Ray cluster. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ncclean.data.options import MAX_PIXELS
from ncclean.errors import InputError
from ncclean.options import DecodeThreads, Option, Options, Seed, parameters, usable_cores, value_of

WeightFunction = Literal["high_degree", "linear", "cosine"]
SourceFormat = Literal["auto", "webdataset", "images", "embeddings"]


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Options):
    """What the parts phase of `score` computes. Raises `InputError` for a value out of range."""

    caption_key: Annotated[
        str | None,
        Option("Extension or json field of the caption (default: `.txt`, `.caption`, json)."),
    ] = None
    batch_size: Annotated[int, Option("Images per forward pass.", low=1, is_idle=True)] = 256
    block_size: Annotated[int, Option("Pairs that in-batch statistics are taken over.", low=1)] = (
        2048
    )
    forget_percent: Annotated[
        float, Option("Share of a block in the NCU forget set.", low=0, high=100)
    ] = 10.0
    decode_threads: DecodeThreads = field(default_factory=usable_cores)
    decode_on: Annotated[
        Literal["cpu", "device"],
        Option("Where JPEGs are decoded: `cpu`, or `device` (a GPU's decoder)."),
    ] = "cpu"
    max_pixels: Annotated[
        int, Option("Largest image to decode, in pixels; a larger one is image_too_large.", low=1)
    ] = MAX_PIXELS
    embeddings: Annotated[
        str | None,
        Option("Also write embeddings here, as clip-retrieval lays them out.", inside="embeddings"),
    ] = None
    calibrate_by: Annotated[
        str | None,
        Option(
            "Column, json field or SQL whose values are calibrated apart, e.g. `language`.",
            metavar="SQL",
        ),
    ] = None
    text: Annotated[bool, Option("Write the captions.")] = True
    seed: Seed = 0

    def result_options(self) -> dict[str, Any]:
        """The options that change what is written, by name."""
        return {
            parameter.name: value_of(self, parameter)
            for parameter in parameters(type(self)).values()
            if not parameter.option.is_idle
        }


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """Which Ray cluster, and how it is divided into workers; None is decided from the cluster.

    Raises `InputError` for a number out of range.
    """

    address: Annotated[
        str | None,
        Option("`auto`, `HOST:PORT` or `ray://HOST:10001`.", name="ray_address", is_idle=True),
    ] = None
    workers: Annotated[
        int | None, Option("Ray workers (default: as many as fit).", low=1, is_idle=True)
    ] = None
    gpus_per_worker: Annotated[
        float | None, Option("GPUs of a Ray worker, may be a fraction.", low=0, is_idle=True)
    ] = None
    cpus_per_worker: Annotated[
        float | None, Option("Cores of a Ray worker.", low=0, is_idle=True)
    ] = None


def parse_shift(value: str | float) -> str | float:
    """`auto`, `noise`, `shuffled` or a number in [-1, 1]. Raises `InputError` for anything else."""
    if value in ("auto", "noise", "shuffled"):
        return value
    try:
        number = float(value)
    except ValueError:
        raise InputError(
            f"--shift takes auto, noise, shuffled or a number, got {value!r}"
        ) from None
    if not -1 <= number <= 1:
        raise InputError(f"--shift is a cosine, between -1 and 1, got {value}")
    return number


def parse_scale(value: str | float | None) -> str | float | None:
    """A positive number, else the name of a model. Raises `InputError` for another number."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return value
    if not 0 < number < float("inf"):
        raise InputError(f"--scale is a positive number or a model, got {value}")
    return number


def parse_keys(text: str | None) -> tuple[str, str] | None:
    """`IMG,TEXT` to both names. Raises `InputError` for anything else."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise InputError(f"--embedding-keys takes two names, as in l14_img,l14_txt, got {text!r}")
    return names[0], names[1]
