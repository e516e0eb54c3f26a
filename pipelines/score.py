"""The score stage: shards to a calibrated score table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import ncclean
from ncclean import stores
from ncclean.config import ClusterOptions, ScoreOptions
from ncclean.data.estimate import estimate_samples
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import InputError, ResumeError
from ncclean.execution.engine import Engine, ModelRequest, PartWriter, ShardOutcome, ShardTask
from ncclean.execution.local import LocalEngine
from ncclean.models.estimator import Estimator, ModelIdentity
from ncclean.storage.finalize import calibrate, finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import Manifest, RunIdentity
from ncclean.storage.summary import ScoreSummary, summarize

from .cost import Rates, estimate
from .progress import NoProgress, Progress

# Estimating the shift stops at this standard error: a large model on a CPU would otherwise spend
# minutes on a digit that no threshold needs.
_SHIFT_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """A scoring run as a user asks for it; paths may be URLs of object stores."""

    shards: Sequence[str]
    out: str
    model: str = "ViT-B-32"
    pretrained: str | None = "laion2b_s34b_b79k"
    precision: str = "auto"
    device: str = "auto"
    compiled: bool = False
    shift: str | float = "noise"
    overwrite: bool = False
    options: ScoreOptions = dataclasses.field(default_factory=ScoreOptions)
    engine: str = "auto"
    cluster: ClusterOptions = dataclasses.field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        if self.engine not in ("auto", "local", "ray"):
            raise InputError(f"--engine takes auto, local or ray, got {self.engine!r}")
        if self.engine == "local" and self.cluster != ClusterOptions():
            raise InputError("--ray-address, --workers and the like are for --engine ray")

    @property
    def uses_ray(self) -> bool:
        """`auto` takes Ray when an address is given or several GPUs are visible."""
        if self.engine != "auto":
            return self.engine == "ray"
        if self.cluster != ClusterOptions():
            return True
        return self.device == "auto" and torch.cuda.device_count() > 1

    @property
    def model_request(self) -> ModelRequest:
        return ModelRequest(
            model=self.model,
            pretrained=self.pretrained,
            precision=self.precision,
            device=self.device,
            compiled=self.compiled,
            space="auto",
        )

    @property
    def layout(self) -> ScoreLayout:
        return ScoreLayout(stores.location(self.out))


@dataclass(frozen=True)
class ScorePlan:
    """What `--dry-run` tells: the size of the job and what it would take.

    `samples_per_second` is one worker's, as measured here on one batch; `worker_hours` is the sum
    over `workers`, `hours` what a clock would show.
    """

    shards: int
    bytes: int
    pairs: int
    device: str
    precision: str
    samples_per_second: float
    workers: int
    worker_hours: float
    hours: float
    gpu_hours: float | None
    bytes_written: int
    read_bytes_per_second: float


def score(request: ScoreRequest, progress: Progress | None = None) -> ScoreSummary:
    """Score every pair of the shards, resuming what an earlier run left.

    Raises `InputError`, `ModelError` or `ResumeError` before anything is computed if the request
    cannot be met. Broken shards do not raise: they are named in the summary.
    """
    progress = progress or NoProgress()
    begin = time.perf_counter()
    shards = resolve_shards(request.shards)
    layout = request.layout
    if not request.overwrite:
        layout.check_usable()
    engine = _open_engine(request, progress)
    try:
        if request.overwrite:  # not before the model is there: what it made may be hard to get back
            _ = engine.identity
            layout.clear()
            layout.check_usable()
        manifest = _open_manifest(request, shards, engine.identity)
        try:
            pending = manifest.pending()
            progress.start(len(pending), estimate_samples(pending))
            start = time.perf_counter()
            scored = _score_pending(pending, manifest, engine, request, progress)
            speed = scored / (time.perf_counter() - start) if scored else None
            if _needs_noise_shift(request, manifest):
                progress.stage("estimating the shift of the estimator")
                manifest.record_noise_shift(
                    engine.estimate_shift(request.options.seed, _SHIFT_TOLERANCE)
                )
            return _finalize(request, manifest, engine, progress, begin, speed)
        finally:
            progress.finish()
            manifest.close()
    finally:
        engine.close()


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
        engine = _open_engine(request, progress) if request.uses_ray else None
        try:
            return _finalize(request, manifest, engine, progress, begin, None)
        finally:
            if engine is not None:
                engine.close()
    finally:
        progress.finish()
        manifest.close()


def plan(request: ScoreRequest, progress: Progress | None = None) -> ScorePlan:
    """Estimate the job: counts from the first samples, the speed from one batch on the model.

    The model is tried on this machine, also where `--workers` will do the work.
    """
    progress = progress or NoProgress()
    shards = resolve_shards(request.shards)
    pairs = estimate_samples(shards)
    estimator = _load(request, progress)
    batch = request.options.batch_size
    speed = batch / estimator.seconds_per_batch(batch)
    size = sum(shard.size for shard in shards)
    rates = Rates(
        pairs_per_second=speed,
        input_bytes=size / max(pairs, 1),
        embedding_dim=estimator.embed_dim if request.options.embeddings else 0,
    )
    workers = request.cluster.workers or 1
    cost = estimate(pairs, rates, shards=len(shards), workers=workers)
    return ScorePlan(
        shards=len(shards),
        bytes=size,
        pairs=pairs,
        device=str(estimator.device),
        precision=estimator.precision,
        samples_per_second=round(speed, 1),
        workers=workers,
        worker_hours=round(cost.worker_hours, 4),
        hours=round(cost.hours, 4),
        gpu_hours=round(cost.worker_hours, 4) if estimator.device.type == "cuda" else None,
        bytes_written=cost.bytes_written,
        read_bytes_per_second=round(cost.read_bytes_per_second, 1),
    )


def _load(request: ScoreRequest, progress: Progress) -> Estimator:
    progress.stage(f"loading {request.model}")
    return request.model_request.load()


def _open_engine(request: ScoreRequest, progress: Progress) -> Engine:
    if not request.uses_ray:
        return LocalEngine(_load(request, progress), request.options)
    from ncclean.execution.ray import RayEngine  # importing Ray takes a second

    progress.stage("connecting to Ray")
    return RayEngine(request.model_request, request.options, request.cluster)


def _open_manifest(request: ScoreRequest, shards: list[ShardRef], model: ModelIdentity) -> Manifest:
    identity = RunIdentity(
        model={
            "model": model.model,
            "pretrained": model.pretrained,
            "weights_fingerprint": model.fingerprint,
            "precision": model.precision,
            "scale": repr(model.scale),
        },
        options={**request.options.result_options(), "compile": request.compiled},
        shards=shards,
        version=ncclean.__version__,
    )
    manifest = Manifest.load(request.layout.manifest)
    if manifest is None:
        return Manifest.create(request.layout.manifest, identity)
    try:
        manifest.check_same_run(identity.model, identity.options, shards)
    except ResumeError:
        manifest.close()
        if any(stats.rows for stats in manifest.done.values()):
            raise
        request.layout.clear()  # of a run that got nowhere, over a wrong path for instance
        return Manifest.create(request.layout.manifest, identity)
    except BaseException:
        manifest.close()
        raise
    manifest.replace_shards(shards)
    return manifest


def _score_pending(
    pending: list[ShardRef],
    manifest: Manifest,
    engine: Engine,
    request: ScoreRequest,
    progress: Progress,
) -> int:
    numbers = {shard.name: index for index, shard in enumerate(manifest.identity.shards)}
    writer = PartWriter(
        work=str(request.layout.work),
        embeddings=request.options.embeddings,
        digits=len(str(max(len(numbers) - 1, 0))),
    )
    scored = 0

    def commit(shard: ShardRef, outcome: ShardOutcome) -> None:
        nonlocal scored
        manifest.commit(shard, outcome.stats, outcome.distributions)
        scored += outcome.stats.rows
        progress.shard(shard.name, outcome.stats.rows, outcome.stats.error)

    tasks = [ShardTask(numbers[shard.name], shard) for shard in pending]
    try:
        engine.run(tasks, writer, commit, progress.samples)
    except OSError as error:
        raise InputError(stores.explain(request.layout.work, error)) from error
    return scored


def _needs_noise_shift(request: ScoreRequest, manifest: Manifest) -> bool:
    if manifest.noise_shift is not None or isinstance(request.shift, float):
        return False
    return request.shift == "noise" or manifest.distributions.mismatched.size == 0


def _finalize(
    request: ScoreRequest,
    manifest: Manifest,
    engine: Engine | None,
    progress: Progress,
    begin: float,
    samples_per_second: float | None,
) -> ScoreSummary:
    progress.stage("finalizing")
    calibration = calibrate(manifest, request.shift)
    (engine.finalize if engine is not None else finalize)(request.layout, manifest, calibration)
    return summarize(
        manifest,
        calibration,
        out=request.out,
        samples_per_second=samples_per_second,
        seconds=time.perf_counter() - begin,
    )
