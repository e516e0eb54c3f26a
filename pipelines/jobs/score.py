"""Scoring: shards to parts, parts to a calibrated score table."""

from __future__ import annotations

import dataclasses
import time
from typing import cast, get_args

import ncclean
from ncclean import stores
from ncclean.auditing.measure import Audit, measure
from ncclean.auditing.move import moved
from ncclean.config import (
    CalibratedOn,
    ScoreOptions,
    WeightFunction,
)
from ncclean.data.estimate import estimate_samples
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.execution import first_pass
from ncclean.execution.engine import (
    EmbeddingRequest,
    Engine,
    EngineRequest,
    ModelRequest,
    PartWriter,
    ShardOutcome,
    ShardTask,
)
from ncclean.execution.further_columns import FurtherColumns
from ncclean.models.estimator import ModelIdentity
from ncclean.storage.calibration import asks_for_noise, calibrate
from ncclean.storage.finalize import finalize
from ncclean.storage.grouping import check_grouping
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import Manifest, RunIdentity
from ncclean.storage.parts import remove_embedding_leftovers
from ncclean.storage.summary import ScoreSummary, summarize
from ncclean.storage.tables import table_files, table_metadata

from ..display import counted
from ..progress import Progress
from ..score import Score
from .score_request import engine_request, model_request, uses_ray

# Estimating the shift stops at this standard error: a large model on a CPU would otherwise spend
# minutes on a digit that no threshold needs.
_SHIFT_TOLERANCE = 1e-3


def score(command: Score, shards: list[ShardRef], progress: Progress) -> ScoreSummary:
    """Score every pair of the command's shards, resuming what an earlier run left.

    Raises `InputError`, `ModelError` or `ResumeError` before anything is computed if the request
    cannot be met. Broken shards do not raise: they are named in the summary.
    """
    begin = time.perf_counter()
    if not command.overwrite:
        _layout(command).check_usable()
    if command.options.calibrate_by is not None:
        check_grouping(command.options.calibrate_by)
    further = FurtherColumns(command.options)
    request = engine_request(command, shards)
    engine = _open_engine(command, request, further, progress)
    try:
        # Only now that the model is there may --overwrite remove what is hard to make again.
        manifest = _open_manifest(command, shards, engine.identity, further)
        try:
            pending = manifest.pending()
            _first_pass(command, shards, request, progress)
            if manifest.change is not None and (counts := manifest.change.counts()):
                progress.say(counts)
            start = time.perf_counter()
            scored = _score_pending(pending, manifest, engine, command, progress)
            speed = scored / (time.perf_counter() - start) if scored else None
            if _needs_noise_shift(command, manifest):
                progress.say("estimating the shift of the estimator")
                manifest.record_noise_shift(
                    engine.estimate_shift(command.options.seed, _SHIFT_TOLERANCE)
                )
            summary = _finalize(command, manifest, engine, progress, begin, speed)
            if command.options.embeddings is not None:
                numbers = (f"{n:0{manifest.digits}d}" for n in manifest.numbers.values())
                remove_embedding_leftovers(stores.location(command.options.embeddings), numbers)
            return summary
        finally:
            manifest.close()
    finally:
        engine.close()


def finalize_only(command: Score, progress: Progress, audit: Audit | None = None) -> ScoreSummary:
    """Calibrate a scored corpus again, with another shift or to the answers of an audit.

    Needs neither model nor shards. `audit` is of the table at `command.out`, and takes the place of
    `command.calibrate_with`. Where a calibration is moved, shift and weight stay as they are unless
    the command says otherwise. Raises `InputError` if nothing has been scored at `command.out`.
    """
    begin = time.perf_counter()
    manifest = Manifest.load(_layout(command).manifest)
    if manifest is None:
        raise InputError(
            f"nothing has been scored to {command.out} yet: run without --finalize-only first"
        )
    try:
        manifest.check_done(command.out)
        if command.calibrate_with is not None:
            progress.say("measuring by the answers")
            audit = measure([command.out], command.calibrate_with)
        if audit is not None:
            command = _as_it_is(command)
        request = model_request(command)  # no worker opens it
        further = FurtherColumns(ScoreOptions())
        engine = _open_engine(command, request, further, progress) if uses_ray(command) else None
        try:
            return _finalize(command, manifest, engine, progress, begin, None, audit)
        finally:
            if engine is not None:
                engine.close()
    finally:
        manifest.close()


def _as_it_is(command: Score) -> Score:
    """The command with the shift, weight and score of the table, where it has the defaults."""
    metadata = table_metadata(table_files([command.out])[0])
    if command.shift == "auto":
        source = metadata.get("shift_source", "")
        shift: str | float = float(metadata["shift"]) if source == "given" else source
        command = dataclasses.replace(command, shift="auto" if shift == "none" else shift)
    score = metadata.get("calibrated_on")
    if command.calibrate_on == "auto" and score in get_args(CalibratedOn):
        command = dataclasses.replace(command, calibrate_on=cast(CalibratedOn, score))
    function = metadata.get("osa_function")
    if command.osa_function == "high_degree" and function in get_args(WeightFunction):
        command = dataclasses.replace(command, osa_function=cast(WeightFunction, function))
    return command


def _layout(command: Score) -> ScoreLayout:
    return ScoreLayout(stores.location(command.out))


def _open_engine(
    command: Score, request: EngineRequest, further: FurtherColumns, progress: Progress
) -> Engine:
    if not uses_ray(command):
        if isinstance(request, ModelRequest):
            progress.say(f"loading {request.model}")
        return request.engine(command.options, further)
    from ncclean.execution.ray import RayEngine  # importing Ray takes a second

    progress.say("connecting to Ray")
    return RayEngine(request, command.options, command.cluster, further)


def _open_manifest(
    command: Score, shards: list[ShardRef], model: ModelIdentity, further: FurtherColumns
) -> Manifest:
    identity = RunIdentity(
        model={
            "model": model.model,
            "pretrained": model.pretrained,
            "weights_fingerprint": model.fingerprint,
            "precision": model.precision,
            "scale": repr(model.scale),
        },
        options={
            **command.options.result_options(),
            **further.identity(),
            "compile": command.compiled,
        },
        shards=shards,
        version=ncclean.__version__,
    )
    return Manifest.open(
        _layout(command),
        identity,
        overwrite=command.overwrite,
        drop_missing=command.drop_missing,
    )


def _score_pending(
    pending: list[ShardRef],
    manifest: Manifest,
    engine: Engine,
    command: Score,
    progress: Progress,
) -> int:
    if not pending:
        progress.say("nothing left to score: all shards are done")
        return 0
    expected = estimate_samples(pending)
    progress.say(f"{counted(len(pending), 'shard')} to score, about {expected:,} samples")
    numbers = manifest.numbers
    writer = PartWriter(
        work=str(_layout(command).work),
        embeddings=command.options.embeddings,
        digits=manifest.digits,
    )
    scored = shards = 0

    def commit(shard: ShardRef, outcome: ShardOutcome) -> None:
        nonlocal scored, shards
        manifest.commit(shard, outcome.stats, outcome.distributions)
        scored, shards = scored + outcome.stats.rows, shards + 1
        if outcome.stats.error is not None:
            progress.say(f"shard {shard.name} failed: {outcome.stats.error}")

    def report(samples: int) -> None:
        progress.advance(samples, expected, "samples", shards=f"{shards:,}/{len(pending):,}")

    tasks = [ShardTask(numbers[shard.name], shard) for shard in pending]
    try:
        engine.run(tasks, writer, commit, report)
    except OSError as error:
        raise InputError(stores.explain(_layout(command).work, error)) from error
    return scored


def _first_pass(
    command: Score, shards: list[ShardRef], request: EngineRequest, progress: Progress
) -> None:
    """What `--pool` and `--canonical` need of the whole corpus, before anything is scored."""
    options = command.options
    if isinstance(request, EmbeddingRequest) and (options.pool is not None or options.canonical):
        progress.say("reading the whole corpus first")
        work = _layout(command).work
        first = first_pass.begin(
            work, shards, request.keys, request.dim, options, command.overwrite
        )
        if first is not None:
            progress.say(first)


def _needs_noise_shift(command: Score, manifest: Manifest) -> bool:
    if manifest.noise_shift is not None or isinstance(command.shift, float):
        return False
    is_alone = manifest.distributions.mismatched.size == 0
    has_model = asks_for_noise("auto", manifest.identity)
    return asks_for_noise(command.shift, manifest.identity) or (is_alone and has_model)


def _finalize(
    command: Score,
    manifest: Manifest,
    engine: Engine | None,
    progress: Progress,
    begin: float,
    samples_per_second: float | None,
    audit: Audit | None = None,
) -> ScoreSummary:
    progress.say("finalizing")
    calibration = calibrate(manifest, command.shift, command.osa_function, command.calibrate_on)
    if audit is not None:
        calibration = moved(calibration, audit)
    (engine.finalize if engine is not None else finalize)(_layout(command), manifest, calibration)
    return summarize(
        manifest,
        calibration,
        out=command.out,
        samples_per_second=samples_per_second,
        seconds=time.perf_counter() - begin,
    )
