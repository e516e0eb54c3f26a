"""Merge scoring runs over parts of a corpus into one run over all of it.

The shards of the merged run are done: it takes over the records of the runs, and writes its table
from their rows. The result is a scoring run like any other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ncclean.base import stores
from ncclean.base.config import CalibrateOn, WeightFunction
from ncclean.base.progress import SILENT, Progress
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ResumeError
from ncclean.storage.calibration import asks_for_noise, calibrate
from ncclean.storage.differences import differences, spelled_out
from ncclean.storage.finalize import finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.run_record import RUN
from ncclean.storage.score_run import LABELS, RunIdentity, ScoreRun
from ncclean.storage.summary import ScoreSummary, summarize

logger = logging.getLogger(__name__)


def merge(
    runs: Sequence[str],
    out: str,
    *,
    shift: str | float = "auto",
    osa_function: WeightFunction = "high_degree",
    calibrate_on: CalibrateOn = "auto",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> ScoreSummary:
    """Merge scoring runs into one at `out`, calibrated over all of their pairs.

    The shards are sorted by url if every run's are, otherwise run after run. Embeddings stay where
    the runs wrote them.

    Raises `InputError` for an unfinished run, a shard in two of them and a shift that no run knows;
    `ResumeError` for runs with another model, options or version, and if `out` holds another run.
    """
    begin = time.perf_counter()
    scored = [_scored(run) for run in runs]
    layout = ScoreLayout(stores.location(out))
    if any(stores.canonical(run) == stores.canonical(out) for run in runs):
        raise InputError(f"--out {out} is one of the runs to merge; choose another")
    identity = merged_identity(scored)
    shifts = [
        (run.noise_shift, run.noise_deviation) for run in scored if run.noise_shift is not None
    ]
    if asks_for_noise(shift, identity) and not shifts:
        raise InputError(
            "the shift 'noise' is not known: no run was scored with it; give the --shift they were "
            "scored with"
        )
    with contextlib.closing(ScoreRun.open(layout, identity, overwrite=overwrite)) as merged:
        if shifts and merged.noise_shift is None:
            merged.record_noise_shift(*shifts[0])
        if gathered := sorted({option for run in scored for option in run.layout.gathered()}):
            logger.warning(
                "%s went by the shards of each run alone; score all in one run to go by all",
                " and ".join(gathered),
            )
        merged.take_over(scored)
        calibration = calibrate(merged, shift, osa_function, calibrate_on)
        progress.say("finalizing")
        finalize(merged, calibration, merges=scored, progress=progress)
        seconds = time.perf_counter() - begin
        return summarize(merged, calibration, out=out, samples_per_second=None, seconds=seconds)


def _scored(out: str) -> ScoreRun:
    """Load a run whose shards are all done. Raises `InputError` if there is none."""
    layout = ScoreLayout(stores.location(out))
    run = ScoreRun.load(layout)
    if run is None:
        raise InputError(f"{out} is not a scoring run: there is no {layout.work / RUN}")
    run.check_done(out)
    return run


def _shards(run: ScoreRun) -> list[ShardRef]:
    """The scored shards in the order of the table, with the versions that were scored."""
    return [
        dataclasses.replace(shard, size=size, version=version)
        for shard in run.identity.shards
        for size, version in [run.scored_versions[shard.name]]
    ]


def merged_identity(runs: Sequence[ScoreRun]) -> RunIdentity:
    """Return the identity of the run that merges others.

    Raises as `merge` does for incompatible runs.
    """
    if not runs:
        raise InputError("name at least one run to merge")
    first = runs[0].identity
    for run in runs[1:]:
        clauses = differences(_compared(first), _compared(run.identity), _LABELS)
        if clauses:
            place, other = run.layout.out, runs[0].layout.out
            raise ResumeError(f"{place} cannot be merged with {other}: {spelled_out(clauses)}")
    by_run = [_shards(run) for run in runs]
    names = Counter(shard.name.replace("/", "__") for shards in by_run for shard in shards)
    for shard in (shard for shards in by_run for shard in shards):
        if names[shard.name.replace("/", "__")] > 1:
            raise InputError(
                f"shard {shard.name} is in more than one of the runs; a merged table has each "
                "shard once, told apart by name"
            )
    merged = [shard for shards in by_run for shard in shards]
    if all(_is_sorted(shards) for shards in by_run):
        merged.sort(key=lambda shard: shard.url)
    return dataclasses.replace(first, options=_options(first), shards=merged)


_LABELS = {**LABELS, "version": "the version of ncclean"}


def _compared(identity: RunIdentity) -> Mapping[str, Any]:
    return {"version": identity.version, "model": identity.model, "options": _options(identity)}


def _options(identity: RunIdentity) -> dict[str, Any]:
    """The options that rows depend on: all but the folder of the embeddings."""
    return {**identity.options, "embeddings": None}


def _is_sorted(shards: Sequence[ShardRef]) -> bool:
    return all(a.url <= b.url for a, b in itertools.pairwise(shards))
