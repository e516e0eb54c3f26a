"""The synth stage: a rendered corpus with known noise, and held-out sets to evaluate on."""

from __future__ import annotations

import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclean.data.noise import PERMUTING
from ncclean.data.synthetic.corpus import CorpusOptions, write_corpus
from ncclean.data.synthetic.heldout import write_heldout
from ncclean.errors import InputError

HELD_OUT = "heldout"


@dataclass(frozen=True, kw_only=True)
class SynthRequest:
    """A corpus as a user asks for it. `noise` is the share of pairs mismatched by `kind`; `hard`
    of captions with one wrong word, `junk` of boilerplate ones, `broken` of samples that cannot be
    scored; `held_out` images make up each held-out set, none if 0.

    Raises `InputError` for a value out of range.
    """

    out: str
    pairs: int = 20_000
    noise: float = 0.2
    kind: str = "ncr"
    hard: float = 0.0
    junk: float = 0.0
    broken: float = 0.0
    duplicates: float = 0.01
    shard_size: int = 1000
    held_out: int = 500
    workers: int | None = None
    seed: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.kind not in PERMUTING:
            raise InputError(f"--kind takes one of {', '.join(PERMUTING)}, got {self.kind!r}")
        if "://" in self.out:
            raise InputError(f"--out of synth is a local folder, got {self.out}")
        _ = self.options  # checks the rest

    @property
    def options(self) -> CorpusOptions:
        return CorpusOptions(
            pairs=self.pairs,
            noise={self.kind: self.noise, "hard": self.hard, "junk": self.junk},
            broken=self.broken,
            duplicates=self.duplicates,
            shard_size=self.shard_size,
            seed=self.seed,
        )


@dataclass(frozen=True)
class SynthSummary:
    """`seconds` is the rendering of the shards, without the held-out sets."""

    out: str
    shards: int
    pairs: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def synth(request: SynthRequest) -> SynthSummary:
    """Render the shards and the held-out sets.

    Raises `InputError` if a shard is there already, unless `overwrite` replaces them all.
    """
    out = Path(request.out)
    if request.overwrite:
        _clear(out)
    begin = time.perf_counter()
    shards = write_corpus(out, request.options, request.workers)
    seconds = time.perf_counter() - begin
    if request.held_out:
        write_heldout(out / HELD_OUT, request.held_out, request.seed)
    return SynthSummary(request.out, len(shards), request.pairs, round(seconds, 3))


def _clear(out: Path) -> None:
    """Remove what an earlier call wrote, and nothing else."""
    for pattern in ("[0-9]*.tar", "[0-9]*.tar.tmp"):
        for path in out.glob(pattern):
            path.unlink()
    if (out / HELD_OUT).is_dir():
        shutil.rmtree(out / HELD_OUT)
