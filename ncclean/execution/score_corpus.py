"""Score a corpus: shards to parts, parts to a calibrated score table."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import cast, get_args

import ncclean
from ncclean.auditing.audit import Audit
from ncclean.auditing.measure import measure
from ncclean.auditing.move import moved
from ncclean.base import stores
from ncclean.base.config import (
    CalibratedOn,
    CalibrationOptions,
    ClusterOptions,
    ScoreOptions,
    TaskOptions,
    parse_shift,
)
from ncclean.base.config import WeightFunction as Function
from ncclean.base.formats import counted, file_size
from ncclean.base.progress import SILENT, Progress
from ncclean.base.store_errors import explain
from ncclean.data.captions import names_there
from ncclean.data.counting import estimate_samples
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.execution import corpus_facts
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.cost import embedding_bytes
from ncclean.execution.embedding_encoder import EmbeddingRequest
from ncclean.execution.encoder import EncoderRequest
from ncclean.execution.engine import Engine, PartWriter, ShardOutcome, ShardTask
from ncclean.execution.engines import open_engine
from ncclean.execution.foreign_captions import foreign_languages
from ncclean.execution.image_encoder import ImageRequest
from ncclean.models.estimator import ModelIdentity
from ncclean.runners.opened import open_runner
from ncclean.runners.runner import Runner
from ncclean.scoring.calibration import Calibration
from ncclean.storage.calibration import asks_for_noise, calibrate
from ncclean.storage.finalize import finalize
from ncclean.storage.grouping import check_grouping
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.parts import remove_embedding_leftovers
from ncclean.storage.score_run import RunIdentity, ScoreRun
from ncclean.storage.summary import ScoreSummary, summarize
from ncclean.storage.tables import table_metadata

logger = logging.getLogger(__name__)

# Estimating the shift stops at this standard error: a large model on a CPU would otherwise spend
# minutes on a digit that no threshold needs.
_SHIFT_TOLERANCE = 1e-3
_LITTLE_NOISE = 0.1  # below this rate, no common language of captions is unknown to the model
_SHARDS_ASKED = 10  # inspected for their fields


@dataclass(frozen=True, kw_only=True)
class ScoreCorpus:
    """A scoring run: the pairs, what is computed for them, and where the table goes.

    `cluster` is the Ray cluster that does the work, None for this process.
    """

    shards: Sequence[ShardRef]
    request: EncoderRequest
    out: str
    options: ScoreOptions = dataclasses.field(default_factory=ScoreOptions)
    calibration: CalibrationOptions = dataclasses.field(default_factory=CalibrationOptions)
    cluster: ClusterOptions | None = None
    drop_missing: bool = False
    overwrite: bool = False

    def run(self, progress: Progress = SILENT) -> ScoreSummary:
        """Score all pairs of the shards and write the final table, resuming an interrupted run.

        Raises `InputError`, `ModelError` or `ResumeError` before computing anything if the request
        cannot be met. Broken shards do not raise: the summary names them.
        """
        begin = time.perf_counter()
        if not self.overwrite:
            self._layout.check_usable()
        if self.options.calibrate_by is not None:
            check_grouping(self.options.calibrate_by)
        columns = ColumnSources(self.options)
        if self.cluster is not None:
            progress.say("connecting to Ray")
        elif isinstance(self.request, ImageRequest):
            progress.say(f"loading {self.request.model.model}")
        with (
            open_engine(self.request, self.options, columns, self.cluster) as engine,
            # --overwrite may remove results that are expensive to recompute only once the model is
            # there.
            closing(self._open(engine.identity, columns)) as run,
        ):
            pending = run.pending()
            if run.change is not None and (counts := run.change.counts()):
                progress.say(counts)
                if gathered := run.layout.gathered():
                    logger.warning(
                        "%s still go by the shards that the run began with; --overwrite scores "
                        "all by those of now",
                        " and ".join(gathered),
                    )
            self._gather_corpus_facts(progress)
            start = time.perf_counter()
            scored, times = self._score(pending, run, engine, progress)
            speed = scored / (time.perf_counter() - start) if scored else None
            if _needs_noise_shift(self.calibration.shift, run):
                progress.say("estimating the shift of the estimator")
                shift = engine.estimate_shift(self.options.seed, _SHIFT_TOLERANCE)
                run.record_noise_shift(shift.mean, shift.deviation)
            progress.say("finalizing")
            calibration = _finalize(run, self.calibration, engine.runner(), progress)
            self._remove_embedding_leftovers(run)
            summary = summarize(
                run,
                calibration,
                out=self.out,
                samples_per_second=speed,
                seconds=time.perf_counter() - begin,
                times=times,
            )
        if self.options.calibrate_by is None and not summary.noise_rate.value < _LITTLE_NOISE:
            summary = dataclasses.replace(summary, foreign_languages=foreign_languages(self.out))
        if summary.ok or not summary.failures.get(SkipReason.CAPTION_MISSING.value):
            return summary
        return dataclasses.replace(summary, fields_there=self._fields_there())

    def _fields_there(self) -> list[str]:
        """Fields of the first shard of images that can be read."""
        names = map(names_there, self.shards[:_SHARDS_ASKED])
        is_of_images = isinstance(self.request, ImageRequest)
        return next(filter(None, names), []) if is_of_images else []

    @property
    def _layout(self) -> ScoreLayout:
        return ScoreLayout(stores.location(self.out))

    def _open(self, model: ModelIdentity, columns: ColumnSources) -> ScoreRun:
        image_key = next((shard.image_key for shard in self.shards), None)
        identity = RunIdentity(
            model={
                "model": model.model,
                "pretrained": model.pretrained,
                "weights_fingerprint": model.fingerprint,
                "precision": model.precision,
                "scale": repr(model.scale),
                **({"preprocessing": model.preprocessing} if model.preprocessing else {}),
            },
            options={
                **self.options.result_options(),
                "embeddings": self._layout.recorded_embeddings(self.options.embeddings),
                **columns.identity(),
                **self.request.result_options(),
                **({"image_key": image_key} if image_key is not None else {}),
            },
            shards=list(self.shards),
            version=ncclean.__version__,
        )
        return ScoreRun.open(
            self._layout, identity, overwrite=self.overwrite, drop_missing=self.drop_missing
        )

    def _gather_corpus_facts(self, progress: Progress) -> None:
        """Gather the facts with which every pair is compared, before anything is scored."""
        options, request = self.options, self.request
        if isinstance(request, ImageRequest) and options.learns_words:
            progress.say("learning word classes from the captions")
            learnt = corpus_facts.gather_word_classes(
                self._layout.work, self.shards, options.caption_key
            )
            if learnt is not None:
                progress.say(learnt)
        if options.learns_boilerplate:
            progress.say("learning boilerplate from the captions")
            boilerplate = corpus_facts.gather_boilerplate(
                self._layout.work, self.shards, options.caption_key
            )
            if boilerplate is not None:
                progress.say(boilerplate)
        if isinstance(request, EmbeddingRequest) and (options.pool or options.canonical):
            progress.say("reading the whole corpus first")
            lacking = corpus_facts.gather_facts(
                self._layout.work, self.shards, request.keys, request.dim, options
            )
            if lacking is not None:
                progress.say(lacking)

    def _score(
        self, pending: list[ShardRef], run: ScoreRun, engine: Engine, progress: Progress
    ) -> tuple[int, Counter[str]]:
        """Score the pending shards; return the number of their samples and seconds by phase."""
        times: Counter[str] = Counter()
        if not pending:
            progress.say("nothing left to score: all shards are done")
            return 0, times
        expected = estimate_samples(pending)
        progress.say(f"{counted(len(pending), 'shard')} to score, about {expected:,} samples")
        if self.options.embeddings is not None:
            size = file_size(embedding_bytes(expected, engine.identity.dim))
            progress.say(f"embeddings of about {size} go to {self.options.embeddings}")
        writer = PartWriter(
            work=str(self._layout.work), embeddings=self.options.embeddings, digits=run.digits
        )
        scored = shards = 0

        def commit(shard: ShardRef, outcome: ShardOutcome) -> None:
            nonlocal scored, shards
            run.commit(shard, outcome.stats, outcome.distributions)
            scored, shards = scored + outcome.stats.rows, shards + 1
            times.update(outcome.stats.times)
            if outcome.stats.error is not None:
                progress.say(f"shard {shard.name} failed: {outcome.stats.error}")

        def report(samples: int) -> None:
            progress.advance(samples, expected, "samples", shards=f"{shards:,}/{len(pending):,}")

        tasks = [ShardTask(run.numbers[shard.name], shard) for shard in pending]
        try:
            engine.run(tasks, writer, commit, report)
        except OSError as error:
            raise InputError(explain(self._layout.work, error)) from error
        return scored, times

    def _remove_embedding_leftovers(self, run: ScoreRun) -> None:
        if self.options.embeddings is not None:
            numbers = (f"{n:0{run.digits}d}" for n in run.numbers.values())
            remove_embedding_leftovers(stores.location(self.options.embeddings), numbers)


def calibrate_again(
    out: str,
    calibration: CalibrationOptions,
    *,
    answers: str | None = None,
    audit: Audit | None = None,
    cluster: ClusterOptions | None = None,
    progress: Progress = SILENT,
) -> ScoreSummary:
    """Recalibrate a finished score table, with another shift or by the answers of an audit.

    Needs neither model nor shards. `answers` is the file of an audit, `audit` a measured one. If a
    calibration is moved, shift and weight stay unless `calibration` says otherwise. Raises
    `InputError` if nothing has been scored at `out`.
    """
    begin = time.perf_counter()
    layout = ScoreLayout(stores.location(out))
    run = ScoreRun.load(layout, to_write=True)
    if run is None:
        raise InputError(f"nothing has been scored to {out} yet: run without --finalize-only first")
    with closing(run):
        run.check_done(out)
        if answers is not None:
            progress.say("measuring by the answers")
            audit = measure([out], answers)
        if audit is not None:
            listed = run.listed.shards.values()
            files = (str(layout.table_file(one.file)) for one in listed if one.file is not None)
            calibration = _as_before(calibration, next(files, out))
        address = None if cluster is None else cluster.address
        tasks = TaskOptions(engine="local" if cluster is None else "ray", ray_address=address)
        with open_runner(tasks, processes=1) as runner:
            progress.say("finalizing")
            calibrated = _finalize(run, calibration, runner, progress, audit)
        return summarize(
            run, calibrated, out=out, samples_per_second=None, seconds=time.perf_counter() - begin
        )


def _as_before(calibration: CalibrationOptions, table: str) -> CalibrationOptions:
    """Replace defaults of the calibration by the table's shift, weight and score."""
    metadata = table_metadata(table)
    if calibration.shift == "auto":
        source = metadata.get("shift_source", "")
        shift: str | float = source if source in ("noise", "shuffled") else "auto"
        if source == "given":
            shift = parse_shift(metadata.get("shift", "auto"))
        calibration = dataclasses.replace(calibration, shift=shift)
    score = metadata.get("calibrated_on")
    if calibration.calibrate_on == "auto" and score in get_args(CalibratedOn):
        calibration = dataclasses.replace(calibration, calibrate_on=cast(CalibratedOn, score))
    function = metadata.get("osa_function")
    if calibration.osa_function == "high_degree" and function in get_args(Function):
        calibration = dataclasses.replace(calibration, osa_function=cast(Function, function))
    return calibration


def _needs_noise_shift(shift: str | float, run: ScoreRun) -> bool:
    if run.noise_shift is not None or isinstance(shift, float):
        return False
    is_alone = run.distributions.mismatched.size == 0
    has_model = asks_for_noise("auto", run.identity)
    return asks_for_noise(shift, run.identity) or (is_alone and has_model)


def _finalize(
    run: ScoreRun,
    options: CalibrationOptions,
    runner: Runner,
    progress: Progress,
    audit: Audit | None = None,
) -> Calibration:
    """Fit the facts that depend on the whole corpus, and write the final table."""
    calibration = calibrate(run, options.shift, options.osa_function, options.calibrate_on)
    if audit is not None:
        calibration = moved(calibration, audit)
    run_tasks = None
    if runner.is_remote:
        run_tasks = lambda function, tasks: runner.map(function, enumerate(tasks))  # noqa: E731
    finalize(run, calibration, run_tasks, progress=progress)
    return calibration
