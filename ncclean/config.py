"""Options of a scoring run, validated where they are made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ncclean.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What the parts phase of `score` computes. Raises `InputError` for a value out of range.

    Fields that change what is written are part of the manifest's fingerprint; `batch_size` and
    `decode_threads` are not, since results do not depend on them.
    """

    caption_key: str | None = None
    block_size: int = 2048
    forget_percent: float = 10.0
    text: bool = True
    seed: int = 0
    batch_size: int = 256
    decode_threads: int = 2
    decode_on: str = "cpu"
    embeddings: str | None = None

    def __post_init__(self) -> None:
        for name in ("block_size", "batch_size", "decode_threads"):
            if getattr(self, name) < 1:
                raise InputError(f"{_option(name)} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.forget_percent <= 100:
            raise InputError(
                f"--forget-percent must lie between 0 and 100, got {self.forget_percent:g}"
            )
        if self.decode_on not in ("cpu", "device"):
            raise InputError(f"--decode-on takes cpu or device, got {self.decode_on!r}")
        if self.seed < 0:
            raise InputError(f"--seed must not be negative, got {self.seed}")

    def result_options(self) -> dict[str, Any]:
        """The fields that change what is written."""
        unaffected = {"batch_size", "decode_threads"}
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in unaffected}


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Which Ray cluster, and how it is divided into workers; None is decided from the cluster.

    Raises `InputError` for a number out of range.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("gpus_per_worker", 0), ("cpus_per_worker", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{_option(name)} must be at least {least}, got {value:g}")


def parse_shift(value: str) -> str | float:
    """`noise`, `shuffled` or a number in [-1, 1]. Raises `InputError` for anything else."""
    if value in ("noise", "shuffled"):
        return value
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"--shift takes noise, shuffled or a number, got {value!r}") from None
    if not -1 <= number <= 1:
        raise InputError(f"--shift is a cosine, between -1 and 1, got {value}")
    return number


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")
