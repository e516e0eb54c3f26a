"""Stages whose options are not the fields of a request: they are turned into one here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ncclean.data.noise import PER_BATCH_SIZE, parse_rates
from ncclean.errors import InputError
from ncclean.evaluation.noise_figure import check_format
from ncclean.evaluation.noise_scores import NoiseScore

from ..evaluate_noise import NoiseEvaluationRequest, parse_thresholds
from ..inject_noise import NoiseRequest


@dataclass(frozen=True, kw_only=True)
class NoiseInjectionStage:
    """`inject-noise` as the command takes it: `kind` and `rate` go together, `noise` has both."""

    shards: Sequence[str]
    out: str
    kind: Sequence[str] = ()
    rate: Sequence[float] = ()
    noise: Mapping[str, float] | Sequence[str] = field(default_factory=dict)
    seed: int = 0
    batch_size: int = PER_BATCH_SIZE
    caption_key: str | None = None
    workers: int | None = None

    def request(self) -> NoiseRequest:
        """Raises `InputError` for kinds and rates that do not fit."""
        noise = self.noise
        pairs = [f"{k}={v}" for k, v in noise.items()] if isinstance(noise, Mapping) else noise
        return NoiseRequest(
            shards=self.shards,
            out=self.out,
            rates=parse_rates(list(self.kind), list(self.rate), list(pairs)),
            seed=self.seed,
            batch_size=self.batch_size,
            caption_key=self.caption_key,
            workers=self.workers,
        )


@dataclass(frozen=True, kw_only=True)
class NoiseEvaluationStage:
    """`evaluate noise` as the command takes it; `out` is the JSON file of the figures."""

    scores: Sequence[str]
    out: str
    column: Sequence[str] = ()
    lower_is_noisier: Sequence[str] = ()
    join: Sequence[str] = ()
    threshold: Mapping[str, float] | Sequence[str] = field(default_factory=dict)
    rule: Sequence[str] = ()
    plot: str | None = None
    memory_limit: str | None = None

    def __post_init__(self) -> None:
        if self.plot is not None:
            from pathlib import Path

            check_format(Path(self.plot))
        if not self.out.endswith(".json"):
            raise InputError(f"--out of evaluate noise is a JSON file, got {self.out!r}")
        self.request()

    def request(self) -> NoiseEvaluationRequest:
        """Raises `InputError` for a threshold that is no number."""
        given = self.threshold
        return NoiseEvaluationRequest(
            scores=self.scores,
            joined=self.join,
            columns=[
                *(NoiseScore(name, True) for name in self.column),
                *(NoiseScore(name, False) for name in self.lower_is_noisier),
            ],
            rules=self.rule,
            thresholds=dict(given) if isinstance(given, Mapping) else parse_thresholds(given),
            memory_limit=self.memory_limit,
        )
