"""The manifest of a scoring run: its run record, with an entry for each finished shard.

A shard's entry is appended after its part is in place, so every entry is true; a last one that a
crash cut short is ignored and its shard done again. The list of shards may change: an entry says
how, and takes what dropped shards have counted out of the sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from upath import UPath

from ncclean import stores
from ncclean.data.samples import FurtherMembers
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError, ResumeError
from ncclean.scoring.stats import Distributions, ShardStats
from ncclean.storage.differences import differences
from ncclean.storage.layout import COMMAND, ScoreLayout
from ncclean.storage.log import read_log
from ncclean.storage.parts import embedding_files
from ncclean.storage.run_record import RunRecord, refusal
from ncclean.storage.shard_list import ListChange, ShardList

LABELS = {
    "model.weights_fingerprint": "the fingerprint of the weights",
    "model.scale": "the scale of the model",
    "model.preprocessing": "the preprocessing of the images",
}


@dataclass(frozen=True)
class RunIdentity:
    """Everything that the parts of a run depend on."""

    model: dict[str, str]
    options: dict[str, Any]
    shards: list[ShardRef]
    version: str

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "options": self.options,
            "shards": [shard.to_json() for shard in self.shards],
            "version": self.version,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RunIdentity:
        shards = [ShardRef(**shard) for shard in fields["shards"]]
        return cls(fields["model"], fields["options"], shards, fields["version"])


@dataclass
class Manifest:
    """The state of a run; `done` maps the names of committed shards to their statistics.

    `open` begins a run or resumes one, `load` takes it as it is. Both lock a local manifest: two
    runs on one output are refused. Object stores have no locks.
    """

    identity: RunIdentity  # with the shards as they are now
    done: dict[str, ShardStats] = field(default_factory=dict)
    scored_versions: dict[str, tuple[int, str]] = field(default_factory=dict)
    # Of all committed shards together.
    distributions: Distributions = field(default_factory=Distributions)
    noise_shift: float | None = None  # of the estimator, once it has been estimated
    change: ListChange | None = None  # of an earlier list of shards, by the command that opened it
    # Of shards that are cut short: they are scored again.
    _incomplete: dict[str, Distributions] = field(default_factory=dict)
    # Which part entry, counted from the first, is the one that holds for a shard.
    _holding: dict[str, int] = field(default_factory=dict)
    _parts: int = 0
    _list_entries: list[dict[str, Any]] = field(default_factory=list)
    _record: RunRecord | None = None

    def __post_init__(self) -> None:
        self._list = ShardList(self.identity.shards)

    @classmethod
    def open(
        cls,
        layout: ScoreLayout,
        identity: RunIdentity,
        *,
        overwrite: bool = False,
        drop_missing: bool = False,
    ) -> Manifest:
        """Begin a scoring run, or resume the one whose output `layout` is.

        The list of shards may have grown, and be in another order. With `drop_missing`, shards of
        the run that are no longer in it are dropped. A run that scored no pair, over a wrong path
        for instance, gives way to another one. Shards that are not done may have changed: a user
        may replace a broken shard and resume. Raises `ResumeError`, spelling out the differences,
        for another run, and `InputError` if something is in the way.
        """
        manifest = cls(identity)

        def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
            manifest._take_list(before)
            return manifest._differences(before, now, drop_missing)

        try:
            manifest._record = RunRecord.open(
                layout.manifest,
                COMMAND,
                identity.to_json(),
                overwrite=overwrite,
                base=layout.out,
                files=partial(manifest._files, layout),
                taken=layout.taken,
                compare=compare,
                on_entry=manifest._read,
            )
        except ResumeError:
            if any(stats.rows for stats in manifest.done.values()) or layout.has_rows():
                raise
            return cls.open(layout, identity, overwrite=True)
        if not manifest._record.resumed:
            return cls(identity, _record=manifest._record)
        try:
            manifest._change_list(layout)
        except BaseException:
            manifest.close()
            raise
        return manifest

    @classmethod
    def load(cls, path: UPath, *, read_only: bool = False) -> Manifest | None:
        """Load the manifest at `path`; None if there is none, or not even its first record.

        With `read_only` it is not locked, and nothing can be recorded.
        """
        manifest = cls(RunIdentity({}, {}, [], ""))
        record = RunRecord.load(path, COMMAND, on_entry=manifest._read, read_only=read_only)
        if record is None:
            return None
        manifest._record = record
        with record.reading():
            manifest._take_list(record.identity)
            identity = RunIdentity.from_json(record.identity)
        manifest.identity = dataclasses.replace(identity, shards=manifest._list.shards)
        return manifest

    @property
    def numbers(self) -> dict[str, int]:
        """Number of each shard by name, which stays the same when other shards come or go."""
        return self._list.numbers

    @property
    def digits(self) -> int:
        """The number of digits in the names of embedding files."""
        return self._list.digits

    def commit(self, shard: ShardRef, stats: ShardStats, distributions: Distributions) -> None:
        """Mark a shard's part as finished."""
        self._append(
            "part",
            shard=shard.name,
            size=shard.size,
            version=shard.version,
            **stats.to_json(),
            **distributions.to_json(),
        )
        self._take(shard.name, (shard.size, shard.version), stats, distributions)

    def record_noise_shift(self, value: float) -> None:
        """Record the cosine on noise, so that finalize needs no model."""
        self._append("noise_shift", value=value)
        self.noise_shift = value

    def check_done(self, out: str) -> None:
        """Raise `InputError` if a shard has been neither scored nor given up."""
        missing = [s.name for s in self.identity.shards if s.name not in self.done]
        if missing:
            raise InputError(
                f"{len(missing)} shards of {out} are not scored yet (first: {missing[0]}); run "
                "the same `ncclean score` command again to go on"
            )

    def captions_cut(self) -> tuple[int, int] | tuple[None, None]:
        """Numbers of captions cut and of tokens they were cut at; None where no model read them."""
        read = [stats for stats in self.done.values() if stats.context_length is not None]
        if not read:
            return None, None
        return sum(stats.captions_cut for stats in read), cast(int, read[0].context_length)

    def further(self) -> FurtherMembers:
        """Pictures and captions of all shards that no row is about."""
        further = FurtherMembers()
        for stats in self.done.values():
            further += stats.further
        return further

    def done_shards(self) -> list[ShardRef]:
        """Shards with a part, in input order."""
        return [shard for shard in self.identity.shards if shard.name in self.done]

    def pending(self) -> list[ShardRef]:
        """Shards to score, in input order: those without a part, or whose tar was cut short."""
        return [
            shard
            for shard in self.identity.shards
            if shard.name not in self.done or self.done[shard.name].error is not None
        ]

    def parts(self, names: Container[str]) -> Iterator[tuple[str, ShardStats, Distributions]]:
        """Yield the records of the committed shards among `names`.

        It is read from the record again: the manifest keeps only sums. In the order of the record.
        """
        if self._record is None:
            raise RuntimeError("the manifest is closed")
        entries = (entry for entry in read_log(self._record.path) if entry.get("kind") == "part")
        for number, entry in enumerate(entries):
            name = entry["shard"]
            if name in names and self._holding.get(name) == number:
                yield name, ShardStats.from_json(entry), Distributions.from_json(entry)

    def dropped_files(self, layout: ScoreLayout) -> list[UPath]:
        """Files of dropped shards that may still exist."""
        present, folder = self.numbers, self.identity.options.get("embeddings")
        files: list[UPath] = []
        for number, shard in self._list.left.items():
            if shard.name not in present:  # it may have come back
                files += layout.files_of(shard)
            if folder is not None:
                place = stores.location(folder)
                files += embedding_files(place, f"{number:0{self.digits}d}").values()
        return files

    def record_removed(self) -> None:
        """Record that the files of dropped shards are deleted."""
        if self._list.left:
            self._append("removed")
            self._list.left.clear()

    def flush(self) -> None:
        """Sync the manifest to disk."""
        if self._record is not None:
            self._record.flush()

    def close(self) -> None:
        if self._record is not None:
            self._record.close()
            self._record = None

    def _read(self, entry: dict[str, Any]) -> None:
        """Take in an entry of an earlier run."""
        if entry["kind"] == "part":
            self._take(
                entry["shard"],
                (entry["size"], entry["version"]),
                ShardStats.from_json(entry),
                Distributions.from_json(entry),
            )
        elif entry["kind"] == "noise_shift":
            self.noise_shift = entry["value"]
        elif entry["kind"] == "shards":
            self._forget(entry["dropped"], Distributions.from_json(entry["counted"]))
            self._list_entries.append(entry)
        elif entry["kind"] == "removed":
            self._list_entries.append(entry)

    def _take(
        self, name: str, version: tuple[int, str], stats: ShardStats, distributions: Distributions
    ) -> None:
        if name in self._incomplete:  # an earlier part of the shard, which this one replaces
            self.distributions -= self._incomplete.pop(name)
        self.distributions += distributions
        if stats.error is not None:
            self._incomplete[name] = distributions
        self.done[name] = stats
        self.scored_versions[name] = version
        self._holding[name] = self._parts
        self._parts += 1

    def _forget(self, names: Iterable[str], counted: Distributions) -> None:
        """Take dropped shards, and what they have counted, out of the state."""
        self.distributions -= counted
        for name in names:
            for state in (self.done, self.scored_versions, self._incomplete, self._holding):
                state.pop(name, None)

    def _take_list(self, first: Mapping[str, Any]) -> None:
        """The list of shards as the record has it, from the identity that it begins with."""
        self._list = ShardList([ShardRef(**shard) for shard in first["shards"]])
        for entry in self._list_entries:
            if entry["kind"] == "removed":
                self._list.left.clear()
            else:
                self._list.apply(ListChange.from_json(entry))

    def _change_list(self, layout: ScoreLayout) -> None:
        """Make the list of the record that of the command, and record how."""
        change = self._list.change_to(self.identity.shards)
        if change is not None:
            self._apply(layout, change)
        self._list.share(self.identity.shards)

    def _apply(self, layout: ScoreLayout, change: ListChange) -> None:
        self._check_free(layout, change)
        counted = Distributions()
        for _, _, distributions in self.parts(change.dropped):
            counted += distributions
        self._append("shards", **change.to_json(), counted=counted.to_json())
        # Before any file of theirs is written or removed: who finds one must know whose it is.
        self.flush()
        self._forget(change.dropped, counted)
        self._list.apply(change)
        self.change = change

    def _check_free(self, layout: ScoreLayout, change: ListChange) -> None:
        """Raise `InputError` if a file that is not the run's is where a new shard's would be."""
        own = {shard.name for shard in self._list.left.values()}
        new = set(change.new) - own
        files = (f for s in self.identity.shards if s.name in new for f in layout.files_of(s))
        for path in stores.present_files(files):
            raise refusal(path, COMMAND)

    def _files(self, layout: ScoreLayout, identity: Mapping[str, Any]) -> Iterator[UPath]:
        """Every file that a run with this identity, or the recorded one, may have written."""
        refs = [ref for entry in self._list_entries for ref in entry.get("refs", ())]
        names = dict.fromkeys(shard["name"] for shard in [*identity["shards"], *refs])
        return layout.files(names)

    def _differences(
        self, before: Mapping[str, Any], now: Mapping[str, Any], drop_missing: bool
    ) -> list[str]:
        was, wanted = ({"model": run["model"], "options": run["options"]} for run in (before, now))
        clauses = differences(was, wanted, LABELS)
        finished = {
            name: self.scored_versions[name]
            for name, stats in self.done.items()
            if stats.error is None
        }
        return clauses + self._list.refusals(self.identity.shards, finished, drop_missing)

    def _append(self, kind: str, **fields: Any) -> None:
        if self._record is None:
            raise RuntimeError("the manifest is closed")
        self._record.append(kind, **fields)
