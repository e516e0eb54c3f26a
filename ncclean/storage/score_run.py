"""A scoring run: its identity, its list of shards, and which of them are done.

A shard is done when its part is in place, or its rows are in the table and its record in
`shards.parquet`; a part is the newer of the two. The list of shards may change between commands:
counts are sums over the shards that are listed and done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from upath import UPath

from ncclean.base import stores
from ncclean.data.samples import FurtherMembers
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ResumeError
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.differences import differences
from ncclean.storage.earlier_scores import adopt_scores
from ncclean.storage.layout import COMMAND, ScoreLayout
from ncclean.storage.made_files import remove_with_leftovers
from ncclean.storage.run_record import RUN, RunRecord, refusal
from ncclean.storage.shard_records import (
    Listed,
    ShardList,
    ShardRecord,
    present_files,
    records_in_list,
    records_in_parts,
)

LABELS = {
    "model.weights_fingerprint": "the fingerprint of the weights",
    "model.scale": "the scale of the model",
    "model.preprocessing": "the preprocessing of the images",
}
_NOISE_SHIFT = "noise_shift"


@dataclass(frozen=True)
class RunIdentity:
    """Everything that the scores of a run depend on: version, model, options and shards."""

    model: dict[str, str]
    options: dict[str, Any]
    shards: list[ShardRef]
    version: str

    @property
    def has_images(self) -> bool:
        """Whether this run encodes images, instead of reading embeddings."""
        return self.model.get("weights_fingerprint") != ""

    def to_json(self) -> dict[str, Any]:
        """Return the identity without its shards, which are listed separately."""
        return {"model": self.model, "options": self.options, "version": self.version}


@dataclass(frozen=True)
class ListChange:
    """The numbers of shards that a command added to a run, dropped from it and kept."""

    new: int
    dropped: int
    kept: int

    def counts(self) -> str:
        """Return the numbers of new, kept and dropped shards in words.

        The text is empty if none is new or dropped.
        """
        if not self.new and not self.dropped:
            return ""
        dropped = f", {self.dropped:,} dropped" if self.dropped else ""
        new = f"{self.new:,} new shard{'s' * (self.new != 1)}"
        return f"{new}, {self.kept:,} kept{dropped}"


@dataclass
class ScoreRun:
    """The state of a scoring run; `done` maps the names of scored shards to their statistics.

    `open` begins or resumes a run, as its only writer; `load` reads it as it is.
    """

    layout: ScoreLayout
    identity: RunIdentity  # with the shards as they are now
    done: dict[str, ShardStats] = field(default_factory=dict)
    noise_shift: float | None = None  # of the estimator, once estimated
    noise_deviation: float | None = None
    change: ListChange | None = None  # of an earlier list of shards, by the command that opened it
    listed: ShardList = field(default_factory=lambda: ShardList({}, 0, 1))
    scored_versions: dict[str, tuple[int, str]] = field(default_factory=dict)
    _sums: Distributions = field(default_factory=Distributions)
    # Broken shards, kept apart because they are scored again.
    _broken: dict[str, Distributions] = field(default_factory=dict)
    _record: RunRecord | None = None

    @classmethod
    def open(
        cls,
        layout: ScoreLayout,
        identity: RunIdentity,
        *,
        overwrite: bool = False,
        drop_missing: bool = False,
    ) -> ScoreRun:
        """Begin a scoring run, or resume the one whose output is `layout`.

        The list of shards may have grown, or be in another order. With `drop_missing`, shards of
        the run that are no longer in it are dropped. A run that scored no pair, for instance
        because of a wrong path, gives way to another one. Unfinished shards may have changed: a
        user may replace a broken shard and resume. Raises `ResumeError`, spelling out the
        differences, for another run, and `InputError` if something is in the way.
        """
        run = cls(layout, identity)
        adopt_scores(layout)
        run._check_free()

        def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
            run._load()
            was, wanted = ({n: one[n] for n in ("model", "options")} for one in (before, now))
            return differences(was, wanted, LABELS) + run._refusals(drop_missing)

        try:
            run._record = RunRecord.open(
                layout.work / RUN,
                COMMAND,
                identity.to_json(),
                overwrite=overwrite,
                base=layout.out,
                files=lambda _: layout.recorded_files(),
                taken=layout.taken,
                compare=compare,
            )
        except ResumeError:
            if run._has_rows():
                raise
            return cls.open(layout, identity, overwrite=True)
        try:
            run._take_entries()
            run._relist()
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def load(cls, layout: ScoreLayout, *, to_write: bool = False) -> ScoreRun | None:
        """Load the run whose output is `layout`; None if there is none.

        Without `to_write`, nothing can be recorded, and another process may continue it.
        """
        adopt_scores(layout)
        record = RunRecord.load(layout.work / RUN, COMMAND, to_write=to_write)
        if record is None:
            return None
        with record.reading():
            identity = RunIdentity(shards=[], **record.identity)
            run = cls(layout, identity, _record=record)
            run._load()
        run._take_entries()
        shards = [one.ref for one in run._present()]
        run.identity = dataclasses.replace(identity, shards=shards)
        return run

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each shard by name, which stays the same when other shards come or go."""
        return {name: one.number for name, one in self.listed.shards.items()}

    @property
    def digits(self) -> int:
        """The number of digits with which embedding files are numbered."""
        return self.listed.digits

    @property
    def distributions(self) -> Distributions:
        """The histograms of scores, summed over all scored shards."""
        total = Distributions()
        for one in (self._sums, *self._broken.values()):
            total += one
        return total

    def commit(self, shard: ShardRef, stats: ShardStats, distributions: Distributions) -> None:
        """Record a shard whose part is complete. Raises `InputError` if the lease is lost."""
        self.check()
        self._take(ShardRecord(shard.name, shard.size, shard.version, stats, distributions))

    def take_over(self, runs: Iterable[ScoreRun]) -> None:
        """Add the shards that this run lacks from other runs, which have their rows."""
        pending = {shard.name for shard in self.pending()}
        for run in runs:
            for name, text in run.records():
                if name in pending:
                    self._take(ShardRecord.from_json(text))

    def record_noise_shift(self, value: float, deviation: float | None = None) -> None:
        """Record the mean cosine on noise and its spread, so that finalize needs no model."""
        assert self._record is not None
        self._record.append(_NOISE_SHIFT, value=value, deviation=deviation)
        self.noise_shift, self.noise_deviation = value, deviation

    def check(self) -> None:
        """Raise `InputError` if another process has begun to write to the output."""
        if self._record is None:
            raise RuntimeError("the run is closed")
        self._record.check()

    def check_done(self, out: str) -> None:
        """Raise `InputError` if a shard has not been scored yet."""
        missing = [s.name for s in self.identity.shards if s.name not in self.done]
        if missing:
            raise InputError(
                f"{len(missing)} shards of {out} are not scored yet (first: {missing[0]}); run "
                "the same `ncclean score` command again to go on"
            )

    def captions_cut(self) -> tuple[int, int] | tuple[None, None]:
        """Return how many captions were cut, and the token limit; None if no model read them."""
        read = [stats for stats in self.done.values() if stats.context_length is not None]
        if not read:
            return None, None
        return sum(stats.captions_cut for stats in read), cast(int, read[0].context_length)

    def further(self) -> FurtherMembers:
        """Return the images and captions of all shards that belong to no row."""
        further = FurtherMembers()
        for stats in self.done.values():
            further += stats.further
        return further

    def done_shards(self) -> list[ShardRef]:
        """Return the scored shards, in input order."""
        return [shard for shard in self.identity.shards if shard.name in self.done]

    def pending(self) -> list[ShardRef]:
        """Return the shards to score, in input order: those without a part, or that broke off."""
        return [
            shard
            for shard in self.identity.shards
            if shard.name not in self.done or self.done[shard.name].error is not None
        ]

    def parts(self) -> dict[str, UPath]:
        """Return the existing parts (tables of one shard's rows) by the names of their shards."""
        present = present_files(self.layout.work)
        named = ((name, self.layout.part(one.ref)) for name, one in self.listed.shards.items())
        return {name: part for name, part in named if part.name in present}

    def records(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the record of each scored shard, in any order.

        They are reread: the run keeps only sums.
        """
        in_parts = set()
        for name, record in records_in_parts(self.parts()):
            in_parts.add(name)
            yield name, record
        for name, record in records_in_list(self.layout.shard_list):
            if name not in in_parts:
                yield name, record

    def forget_dropped(self) -> None:
        """Delete dropped shards from the list, and their parts."""
        dropped = [one.ref for one in self.listed.shards.values() if one.position is None]
        if not dropped:
            return
        remove_with_leftovers(map(self.layout.part, dropped))
        for ref in dropped:
            del self.listed.shards[ref.name]
        self.write_list(records_in_list(self.layout.shard_list))

    def write_list(self, records: Iterable[tuple[str, str]]) -> None:
        """Publish the list of shards, with the records of those whose rows are in the table."""
        self.check()
        self.listed.write(self.layout.shard_list, records)

    def close(self) -> None:
        """Release the output, so that another process may write to it."""
        if self._record is not None:
            self._record.close()
            self._record = None

    def _check_free(self) -> None:
        """Raise `InputError` for a file in the place of the table or parts that is not the run's.

        Without its list of shards, no table is the run's.
        """
        listed = ShardList.read(self.layout.shard_list)
        if listed is None and (table := self.layout.taken()) is not None:
            raise refusal(table, COMMAND)
        own = listed.shards if listed is not None else {}
        new = (shard for shard in self.identity.shards if shard.name not in own)
        for path in stores.present_files(map(self.layout.part, new)):
            raise refusal(path, COMMAND)

    def _load(self) -> None:
        """Read the list of shards, and the counts of those that are done.

        The record of a shard that was dropped and returned with other bytes does not count; that of
        a broken one counts until it is scored again.
        """
        self.done, self.scored_versions, self._broken = {}, {}, {}
        self._sums = Distributions()
        self.listed = ShardList.read(self.layout.shard_list) or self.listed
        wanted = {(one.name, one.size, one.version) for one in self.identity.shards}
        for name, text in self.records():
            record, one = ShardRecord.from_json(text), self.listed.shards[name]
            scored = record.size, record.version
            is_wanted = one.position is not None or (name, *scored) in wanted
            is_same = scored == (one.ref.size, one.ref.version)
            if is_wanted and (is_same or record.stats.error is not None):
                self._take(record)

    def _take(self, record: ShardRecord) -> None:
        name, stats = record.name, record.stats
        self._broken.pop(name, None)  # an earlier part of the shard, which this one replaces
        if stats.error is None:
            self._sums += record.distributions
        else:
            self._broken[name] = record.distributions
        self.done[name] = stats
        self.scored_versions[name] = record.size, record.version

    def _take_entries(self) -> None:
        assert self._record is not None
        for entry in self._record.entries:
            if entry["kind"] == _NOISE_SHIFT:
                self.noise_shift = entry["value"]
                self.noise_deviation = entry.get("deviation")

    def _has_rows(self) -> bool:
        return any(stats.rows for stats in self.done.values())

    def _present(self) -> list[Listed]:
        """The shards of the list in its order."""
        present = [one for one in self.listed.shards.values() if one.position is not None]
        return sorted(present, key=lambda one: cast(int, one.position))

    def _wanted(self) -> list[ShardRef]:
        """Return the command's shards as the list has them.

        Paths are absolute: the table may be finalized or merged from another working folder.
        """
        return [shard.recorded().absolute() for shard in self.identity.shards]

    def _refusals(self, drop_missing: bool) -> list[str]:
        """Return why the command's list of shards must not become the run's, a clause each."""
        wanted = self._wanted()
        names = {shard.name for shard in wanted}
        present = {one.ref.name: one.ref for one in self._present()}
        missing = {ref.url: name for name, ref in present.items() if name not in names}
        clauses = []
        if not self._has_rows() and present and list(present.values()) != wanted:
            clauses.append("the shards are others")  # as may be the facts gathered from them
        for shard in wanted:
            stats, now = self.done.get(shard.name), (shard.size, shard.version)
            if shard.name not in present and shard.url in missing:
                clauses.append(
                    f"shard {missing.pop(shard.url)} is called {shard.name} now, since another "
                    "one has its file name"
                )
            elif stats is None or stats.error is not None:
                continue
            elif self.scored_versions[shard.name] != now:
                clauses.append(f"shard {shard.name} has changed since it was scored")
        if missing and not drop_missing:
            first, *others = missing.values()
            more = f", and {len(others):,} more" if others else ""
            clauses.append(
                f"shard {first} is missing now{more} (`score --drop-missing` takes what is missing "
                "out of the table)"
            )
        return clauses

    def _relist(self) -> None:
        """Replace the list of shards by the command's."""
        before, listed = self._present(), self.listed
        wanted = self._wanted()
        if [one.ref for one in before] == wanted and before:
            return
        if not listed.shards:
            listed.digits = len(str(max(len(wanted) - 1, 0)))
        present = {one.ref.name for one in before}
        dropped = present.difference(shard.name for shard in wanted)
        new = sum(shard.name not in present for shard in wanted)
        if before:
            self.change = ListChange(new, len(dropped), len(wanted) - new)
        for one in listed.shards.values():
            one.position = None
        for position, shard in enumerate(wanted):
            if shard.name not in listed.shards:
                listed.shards[shard.name] = Listed(listed.next_number, None, shard)
                listed.next_number += 1
            one = listed.shards[shard.name]
            one.position, one.ref = position, shard
        self.write_list(records_in_list(self.layout.shard_list))
        if dropped:
            self._load()
