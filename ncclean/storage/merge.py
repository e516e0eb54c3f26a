"""Scoring runs over parts of a corpus to one run over all of it.

Merging is scoring with rows that are there already: each shard's rows become a part of the new
run, then its entry is recorded, and at the end the run is finalized. So an interrupted merge goes
on as a scoring run does, and the result is one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ncclean import stores
from ncclean.config import CalibrateOn, WeightFunction
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ResumeError
from ncclean.progress import SILENT, Progress
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.calibration import asks_for_noise, calibrate
from ncclean.storage.differences import differences, spelled_out
from ncclean.storage.finalize import finalize
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.manifest import LABELS, Manifest, RunIdentity
from ncclean.storage.parts import write_part
from ncclean.storage.row_sources import Piece, RowSources, read_ahead
from ncclean.storage.summary import ScoreSummary, summarize


@dataclass(frozen=True)
class ScoredRun:
    """A scoring run that is merged into another one; all of its shards are done."""

    out: str
    layout: ScoreLayout
    manifest: Manifest

    @classmethod
    def open(cls, out: str) -> ScoredRun:
        """Open a finished scoring run at `out`. Raises `InputError` if there is none."""
        layout = ScoreLayout(stores.location(out))
        manifest = Manifest.load(layout.manifest, read_only=True)
        if manifest is None:
            raise InputError(f"{out} is not a scoring run: there is no {layout.manifest}")
        manifest.check_done(out)
        return cls(out, layout, manifest)

    def shards(self) -> list[ShardRef]:
        """The scored shards in the order of the table, with the versions that were scored."""
        return [
            dataclasses.replace(shard, size=size, version=version)
            for shard in self.manifest.identity.shards
            for size, version in [self.manifest.scored_versions[shard.name]]
        ]


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

    The shards are in the order of their urls if they are so in every run, otherwise run after run.
    Embeddings stay where the runs wrote them.

    Raises `InputError` for an unfinished run, a shard that is in two of them and a shift that no
    run knows; `ResumeError` for runs with another model, options or version, and where `out` holds
    another run.
    """
    begin = time.perf_counter()
    scored = [ScoredRun.open(run) for run in runs]
    layout = ScoreLayout(stores.location(out))
    if any(stores.canonical(run.out) == stores.canonical(out) for run in scored):
        raise InputError(f"--out {out} is one of the runs to merge; choose another")
    identity = merged_identity(scored)
    shifts = [run.manifest.noise_shift for run in scored if run.manifest.noise_shift is not None]
    if asks_for_noise(shift, identity) and not shifts:
        raise InputError(
            "the shift 'noise' is not known: no run was scored with it; give the --shift they were "
            "scored with"
        )
    with contextlib.closing(Manifest.open(layout, identity, overwrite=overwrite)) as manifest:
        if shifts and manifest.noise_shift is None:
            manifest.record_noise_shift(shifts[0])
        _take_over(scored, layout, manifest, progress)
        calibration = calibrate(manifest, shift, osa_function, calibrate_on)
        finalize(layout, manifest, calibration)
        seconds = time.perf_counter() - begin
        return summarize(manifest, calibration, out=out, samples_per_second=None, seconds=seconds)


def merged_identity(runs: Sequence[ScoredRun]) -> RunIdentity:
    """The identity of the merged run. Raises as `merge` does for runs that do not go together."""
    if not runs:
        raise InputError("name at least one run to merge")
    first = runs[0].manifest.identity
    for run in runs[1:]:
        clauses = differences(_compared(first), _compared(run.manifest.identity), _LABELS)
        if clauses:
            raise ResumeError(
                f"{run.out} cannot be merged with {runs[0].out}: {spelled_out(clauses)}"
            )
    by_run = [run.shards() for run in runs]
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


def _take_over(
    runs: Sequence[ScoredRun], layout: ScoreLayout, manifest: Manifest, progress: Progress
) -> None:
    """Commit the shards that the merged run does not have yet."""
    pending = {shard.name: shard for shard in manifest.pending()}
    done = 0
    for run in runs:
        sources = RowSources(run.layout, run.manifest.identity.shards)
        entries = run.manifest.parts(pending)
        for (name, stats, distributions), tables in read_ahead(
            _with_pieces(entries, pending, sources), lambda table: table
        ):
            kinds = sources.schema(pending[name])
            rows = pa.concat_tables([kinds.empty_table(), *tables])
            write_part(layout.part(pending[name]), rows)
            manifest.commit(pending[name], stats, distributions)
            done += 1
            progress.advance(done, len(pending), "shards")


_Entry = tuple[str, ShardStats, Distributions]


def _with_pieces(
    entries: Iterator[_Entry], shards: Mapping[str, ShardRef], sources: RowSources
) -> Iterator[tuple[_Entry, list[Piece]]]:
    for entry in entries:
        name, stats, _ = entry
        yield entry, sources.pieces(shards[name], stats.rows)
