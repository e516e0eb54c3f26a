"""The score stage: shards to a calibrated score table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ncclean
from ncclean.config import ScoreOptions
from ncclean.data.estimate import estimate_samples
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import InputError
from ncclean.execution.local import LocalEngine
from ncclean.execution.task import ShardResult
from ncclean.models.estimator import Estimator
from ncclean.scoring.osa import estimate_shift
from ncclean.storage.atomic import explain
from ncclean.storage.finalize import calibrate, finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import Manifest, RunIdentity
from ncclean.storage.parts import write_embeddings, write_part
from ncclean.storage.summary import ScoreSummary, summarize

# Estimating the shift stops at this standard error: a large model on a CPU would otherwise spend
# minutes on a digit that no threshold needs.
_SHIFT_TOLERANCE = 1e-3


class Progress(Protocol):
    """Where a run reports how far it is."""

    def start(self, shards: int, samples: int) -> None:
        """`shards` are to be done, with about `samples` samples."""

    def samples(self, done: int) -> None:
        """So many samples have been embedded in this run."""

    def shard(self, name: str, rows: int, error: str | None) -> None:
        """A shard is committed, or has failed for the given reason."""

    def stage(self, text: str) -> None:
        """Something else than scoring begins."""

    def finish(self) -> None:
        """No more reports follow."""


class NoProgress:
    def start(self, shards: int, samples: int) -> None: ...
    def samples(self, done: int) -> None: ...
    def shard(self, name: str, rows: int, error: str | None) -> None: ...
    def stage(self, text: str) -> None: ...
    def finish(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """A scoring run as a user asks for it. Raises `InputError` for an output that is a URL."""

    shards: Sequence[str]
    out: str
    model: str = "ViT-B-32"
    pretrained: str | None = "laion2b_s34b_b79k"
    precision: str = "auto"
    device: str = "auto"
    shift: str | float = "noise"
    overwrite: bool = False
    options: ScoreOptions = dataclasses.field(default_factory=ScoreOptions)

    def __post_init__(self) -> None:
        for option, path in (("--out", self.out), ("--embeddings", self.options.embeddings)):
            if path is not None and "://" in path:
                raise InputError(f"{option} takes a local path in this version, got {path}")

    @property
    def layout(self) -> ScoreLayout:
        return ScoreLayout(Path(self.out))


@dataclass(frozen=True)
class ScorePlan:
    """What `--dry-run` tells: the size of the job and how long it would take here."""

    shards: int
    bytes: int
    pairs: int
    device: str
    precision: str
    samples_per_second: float
    hours: float
    gpu_hours: float | None


def score(request: ScoreRequest, progress: Progress | None = None) -> ScoreSummary:
    """Score every pair of the shards, resuming what an earlier run left.

    Raises `InputError`, `ModelError` or `ResumeError` before anything is computed if the request
    cannot be met. Broken shards do not raise: they are named in the summary.
    """
    progress = progress or NoProgress()
    begin = time.perf_counter()
    shards = resolve_shards(request.shards)
    layout = request.layout
    if request.overwrite:
        layout.clear()
    layout.check_usable()
    estimator = _load(request, progress)
    manifest = _open_manifest(request, shards, estimator)
    try:
        pending = manifest.pending()
        progress.start(len(pending), estimate_samples(pending))
        start = time.perf_counter()
        scored = _score_pending(pending, manifest, estimator, request, progress)
        speed = scored / (time.perf_counter() - start) if scored else None
        if _needs_noise_shift(request, manifest):
            progress.stage("estimating the shift of the estimator")
            manifest.record_noise_shift(
                estimate_shift(estimator, seed=request.options.seed, tolerance=_SHIFT_TOLERANCE)
            )
        return _finalize(request, manifest, progress, begin, speed)
    finally:
        progress.finish()
        manifest.close()


def finalize_only(request: ScoreRequest, progress: Progress | None = None) -> ScoreSummary:
    """Calibrate a scored corpus again, with another shift; needs neither model nor shards.

    Raises `InputError` if nothing has been scored at `request.out`.
    """
    progress = progress or NoProgress()
    begin = time.perf_counter()
    manifest = Manifest.load(request.layout.manifest)
    if manifest is None:
        raise InputError(
            f"nothing has been scored to {request.out} yet; run without --finalize-only first"
        )
    try:
        missing = [s.name for s in manifest.identity.shards if s.name not in manifest.done]
        if missing:
            raise InputError(
                f"{len(missing)} shards of {request.out} are not scored yet (first: {missing[0]}); "
                "run without --finalize-only to go on"
            )
        return _finalize(request, manifest, progress, begin, None)
    finally:
        progress.finish()
        manifest.close()


def plan(request: ScoreRequest, progress: Progress | None = None) -> ScorePlan:
    """Estimate the job: counts from the first samples, the speed from one batch on the model."""
    progress = progress or NoProgress()
    shards = resolve_shards(request.shards)
    pairs = estimate_samples(shards)
    estimator = _load(request, progress)
    batch = request.options.batch_size
    speed = batch / estimator.seconds_per_batch(batch)
    hours = pairs / speed / 3600
    return ScorePlan(
        shards=len(shards),
        bytes=sum(shard.size for shard in shards),
        pairs=pairs,
        device=str(estimator.device),
        precision=estimator.precision,
        samples_per_second=round(speed, 1),
        hours=round(hours, 4),
        gpu_hours=round(hours, 4) if estimator.device.type == "cuda" else None,
    )


def _load(request: ScoreRequest, progress: Progress) -> Estimator:
    progress.stage(f"loading {request.model}")
    return Estimator.load(
        request.model, request.pretrained, precision=request.precision, device=request.device
    )


def _open_manifest(request: ScoreRequest, shards: list[ShardRef], estimator: Estimator) -> Manifest:
    identity = RunIdentity(
        model={
            "model": estimator.identity.model,
            "pretrained": estimator.identity.pretrained,
            "weights_fingerprint": estimator.identity.fingerprint,
            "precision": estimator.identity.precision,
        },
        options=request.options.result_options(),
        shards=shards,
        version=ncclean.__version__,
    )
    manifest = Manifest.load(request.layout.manifest)
    if manifest is None:
        return Manifest.create(request.layout.manifest, identity)
    try:
        manifest.check_same_run(identity.model, identity.options, shards)
    except BaseException:
        manifest.close()
        raise
    manifest.replace_shards(shards)
    return manifest


def _score_pending(
    pending: list[ShardRef],
    manifest: Manifest,
    estimator: Estimator,
    request: ScoreRequest,
    progress: Progress,
) -> int:
    layout, embeddings = request.layout, request.options.embeddings
    numbers = {shard.name: index for index, shard in enumerate(manifest.identity.shards)}
    width = len(str(max(len(numbers) - 1, 0)))
    scored = 0

    def commit(shard: ShardRef, result: ShardResult) -> None:
        nonlocal scored
        if embeddings is not None and result.embeddings is not None:
            number = f"{numbers[shard.name]:0{width}d}"
            found = result.embeddings
            write_embeddings(Path(embeddings), number, found.image, found.text, found.metadata)
        write_part(layout.part(shard), result.table)
        manifest.commit(shard, result.stats)
        scored += result.stats.rows
        progress.shard(shard.name, result.stats.rows, result.stats.error)

    try:
        LocalEngine(estimator, request.options).run(pending, commit, progress.samples)
    except OSError as error:
        raise InputError(explain(layout.work, error)) from error
    return scored


def _needs_noise_shift(request: ScoreRequest, manifest: Manifest) -> bool:
    if manifest.noise_shift is not None or isinstance(request.shift, float):
        return False
    no_mismatches = all(stats.mismatched.size == 0 for stats in manifest.done.values())
    return request.shift == "noise" or no_mismatches


def _finalize(
    request: ScoreRequest,
    manifest: Manifest,
    progress: Progress,
    begin: float,
    samples_per_second: float | None,
) -> ScoreSummary:
    progress.stage("finalizing")
    calibration = calibrate(manifest, request.shift)
    finalize(request.layout, manifest, calibration)
    return summarize(
        manifest,
        calibration,
        out=request.out,
        samples_per_second=samples_per_second,
        seconds=time.perf_counter() - begin,
    )
