"""Summarise a scoring run for the command line and `--json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ncclean.base.estimates import UNKNOWN, Estimate
from ncclean.data.samples import SkipReason
from ncclean.scoring.calibration import Calibration
from ncclean.scoring.null import GroupRate
from ncclean.scoring.stats import ColumnFailures
from ncclean.scoring.vague_rate import ForeignLanguage
from ncclean.storage.run_facts import parse_facts
from ncclean.storage.score_run import ScoreRun


@dataclass(frozen=True)
class ScoreSummary:
    """Counts over all shards, the corpus's noise rate, and the speed.

    `samples_per_second` counts the samples of this invocation, reading to commit; `seconds`
    includes loading the model and finalizing. `separation` is how often a matched pair has a higher
    score than a mismatched one, estimated with the noise rate; `calibrated_on` names the score.
    `groups` are those of `calibrate_by`. `column_failures` counts the pairs for which a function of
    `--columns` failed, `column_errors` has the first reason. `near_miss_rate` is the share of
    captions with a wrong word, if `has_words` says that other words were tried. `audited` is the
    number of answers that measured the noise rate and moved the calibration, None without an audit.
    `fields_there` are fields of the first samples, if no pair had a caption. `part_noise_rate` is
    the share of wrong parts in captions that have several, if `has_parts` says that they were
    compared; wholly mismatched pairs count only in `noise_rate`. `captions_cut` counts captions
    with more tokens than the model's `context_length`, None without a model. `further_images` and
    `further_captions` count members that belong to no row, by their extensions or columns, and
    `split_keys` the samples whose keys end at the last dot of a name. `other_names` counts image
    files found under another name than a table has, by what differs, `caption_lines` text files of
    several lines that are one caption, and `turned` images rotated by EXIF. `model` names the
    estimator, and `preprocessing` is that of the images, as in `preprocess_cfg`.
    `foreign_languages` are caption languages that the model may not know. `shift_deviation` is that
    of the cosines on noise if their mean is the shift, else None. `times` are seconds by phase
    (`ncclean.scoring.stats.ShardStats`) over this invocation's shards and workers; phases overlap.
    """

    rows: int
    ok: int
    failures: dict[str, int]
    shards: int
    shards_failed: int
    failed_shards: dict[str, str]
    noise_rate: Estimate
    separation: float | None
    calibrated_on: str
    shift: float
    shift_deviation: float | None
    samples_per_second: float | None
    seconds: float
    out: str
    calibrate_by: str | None = None
    groups: list[GroupRate] = field(default_factory=list)
    column_failures: dict[str, int] = field(default_factory=dict)
    column_errors: dict[str, str] = field(default_factory=dict)
    near_miss_rate: Estimate = UNKNOWN
    audited: int | None = None
    fields_there: list[str] = field(default_factory=list)
    has_words: bool = False
    has_parts: bool = False
    part_noise_rate: Estimate = UNKNOWN
    captions_cut: int | None = None
    context_length: int | None = None
    further_images: dict[str, int] = field(default_factory=dict)
    further_captions: dict[str, int] = field(default_factory=dict)
    split_keys: int = 0
    other_names: dict[str, int] = field(default_factory=dict)
    caption_lines: int = 0
    turned: int = 0
    model: str | None = None
    preprocessing: dict[str, Any] | None = None
    times: dict[str, float] = field(default_factory=dict)
    foreign_languages: list[ForeignLanguage] = field(default_factory=list)


def summarize(
    run: ScoreRun,
    calibration: Calibration,
    *,
    out: str,
    samples_per_second: float | None,
    seconds: float,
    times: Mapping[str, float] = MappingProxyType({}),
) -> ScoreSummary:
    """Summarise a scoring run that took `seconds` this time."""
    statuses: dict[str, int] = {}
    lacking = ColumnFailures()
    for stats in run.done.values():
        for status, count in stats.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
        lacking += stats.column_failures
    failed = {
        shard.name: run.done[shard.name].error or ""
        for shard in run.identity.shards
        if run.done[shard.name].error is not None
    }
    near, parts = calibration.near_misses, calibration.foreign_parts
    cut, context = run.captions_cut()
    further = run.further()
    ok = SkipReason.OK.value
    return ScoreSummary(
        rows=sum(statuses.values()),
        ok=statuses.get(ok, 0),
        failures={name: statuses[name] for name in sorted(statuses) if name != ok},
        shards=len(run.identity.shards),
        shards_failed=len(failed),
        failed_shards=failed,
        noise_rate=calibration.noise_rate,
        separation=calibration.null.separation if calibration.null is not None else None,
        calibrated_on=calibration.calibrated_on,
        calibrate_by=run.identity.options.get("calibrate_by"),
        groups=list(calibration.group_rates),
        column_failures=dict(lacking.counts),
        column_errors=lacking.reasons,
        near_miss_rate=near.rate if near is not None else UNKNOWN,
        has_words=run.identity.options.get("words") is not None,
        has_parts=run.identity.options.get("caption_parts") is not None,
        part_noise_rate=parts.rate if parts is not None else UNKNOWN,
        audited=calibration.audited.answers if calibration.audited is not None else None,
        captions_cut=cut,
        context_length=context,
        further_images=dict(further.images),
        further_captions=dict(further.captions),
        split_keys=further.split_keys,
        other_names=dict(further.names),
        caption_lines=further.caption_lines,
        turned=further.turned,
        model=parse_facts(run.identity.model).model_name,
        preprocessing=json.loads(run.identity.model.get("preprocessing", "null")),
        shift=calibration.shift,
        shift_deviation=run.noise_deviation if calibration.shift_source == "noise" else None,
        samples_per_second=round(samples_per_second, 1) if samples_per_second else None,
        seconds=round(seconds, 2),
        times={phase: round(spent, 2) for phase, spent in times.items()},
        out=out,
    )
