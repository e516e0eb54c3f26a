"""The noise stage: shards to the same shards with known noise.

Two passes. The first indexes every shard: pairs, captions, where members lie. With the number of
pairs known, the noise is planned; the second pass copies the shards with it. Both take a shard at
a time, in any order and by any number of processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import IO, Any, TypeVar, cast

import numpy as np
from upath import UPath

from ncclean import stores
from ncclean.data.donors import Donors, IndexedShard, gather_donors, image_spans, moving_images
from ncclean.data.estimate import estimate_samples
from ncclean.data.inject import PairEdit, write_noisy
from ncclean.data.noise import (
    PER_BATCH_SIZE,
    PERMUTING,
    NoisePlan,
    check_rates,
    noise_count,
    plan_noise,
)
from ncclean.data.shard_index import ShardIndex, index_shard, open_tar
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import InputError, ShardError
from ncclean.storage.atomic import published
from ncclean.storage.injection import Injection, InjectionIdentity, ShardRecord

from .progress import NoProgress, Progress

T = TypeVar("T")

# Processes take seconds to start; less than this is done sooner by one.
_BYTES_WORTH_A_PROCESS = 64 << 20


@dataclass(frozen=True, kw_only=True)
class NoiseRequest:
    """A noise injection as a user asks for it; `rates` by kind, paths may be URLs.

    Raises `InputError` for a value out of range.
    """

    shards: Sequence[str]
    out: str
    rates: Mapping[str, float]
    seed: int = 0
    batch_size: int = PER_BATCH_SIZE
    caption_key: str | None = None
    workers: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.rates:
            raise InputError("say which noise: --kind ncr --rate 0.2, or --noise ncr=0.2,hard=0.05")
        check_rates(self.rates)
        if self.batch_size < 2:
            raise InputError(f"--batch-size must be at least 2, got {self.batch_size}")
        if (self.caption_key or "").lower() == "json":
            raise InputError("--caption-key json is not a caption: name the field of the json")


@dataclass(frozen=True)
class NoiseSummary:
    """What a finished injection wrote.

    Of `pairs` scorable pairs, `planned` were drawn per kind and `noisy` came out noisy: the rest
    were left in place by the permutation (`left_in_place`) or got a copy of what they had
    (`unchanged`). `shortage` is what could not be drawn of what the rates ask for.
    `already_noisy` pairs were noisy in the input and left alone.
    """

    shards: int
    shards_failed: int
    failed_shards: dict[str, str]
    samples: int
    pairs: int
    planned: dict[str, int]
    noisy: dict[str, int]
    left_in_place: dict[str, int]
    unchanged: dict[str, int]
    shortage: dict[str, int]
    already_noisy: int
    json_added: int
    json_replaced: int
    samples_per_second: float | None
    seconds: float
    out: str


def inject_noise(request: NoiseRequest, progress: Progress | None = None) -> NoiseSummary:
    """Write the shards with noise, resuming what an earlier run left.

    Raises `InputError` or `ResumeError` before anything is written if the request cannot be met.
    Shards that break off do not raise: what can be read is treated as usual, the rest is copied.
    """
    progress = progress or NoProgress()
    begin = time.perf_counter()
    shards = resolve_shards(request.shards)
    identity = InjectionIdentity(
        rates=dict(request.rates),
        seed=request.seed,
        batch_size=request.batch_size,
        caption_key=request.caption_key,
        shards=shards,
    )
    out = stores.location(request.out)
    _check_apart(out, identity)
    run = Injection.open(out, identity, overwrite=request.overwrite)
    written = 0
    failed: dict[str, str] = {}
    try:
        pending = run.pending()
        if pending:
            progress.start(len(pending), estimate_samples([shards[n] for n in pending]))
            with _Workers(request.workers, shards) as workers:
                plan, starts = _plan(run, workers, progress)
                written, failed = _write_all(run, workers, plan, starts, pending, progress)
        if not failed:
            run.remove_indexes()
    finally:
        progress.finish()
        run.close()
    return _summarize(run, failed, written, time.perf_counter() - begin)


def _plan(run: Injection, workers: _Workers, progress: Progress) -> tuple[NoisePlan, np.ndarray]:
    """The plan, and the (S + 1,) number of pairs before each shard. Indexes what is not indexed."""
    shards, identity = run.identity.shards, run.identity
    missing = [number for number in range(len(shards)) if run.index(number) is None]
    if missing:
        progress.stage(f"indexing {len(missing):,} shards")
    tasks = ((number, (shards[number], identity.caption_key)) for number in missing)
    for number, index in workers.map(index_shard, tasks):
        run.keep_index(number, index)
    changeable = [_index(run, number).changeable for number in range(len(shards))]
    starts = np.cumsum([0, *map(len, changeable)])
    plan = plan_noise(
        int(starts[-1]),
        identity.rates,
        identity.seed,
        batch_size=identity.batch_size,
        changeable=np.concatenate(changeable),
    )
    run.record_plan(plan.planned)
    return plan, starts


def _write_all(
    run: Injection,
    workers: _Workers,
    plan: NoisePlan,
    starts: np.ndarray,
    pending: list[int],
    progress: Progress,
) -> tuple[int, dict[str, str]]:
    """Write the pending shards; returns the samples written, and why shards could not be."""
    progress.stage("writing")
    donors = gather_donors(plan, starts, run.identity.seed, _donating(run, plan, starts))
    written = 0
    failed: dict[str, str] = {}
    for number, outcome in workers.map(_write_shard, _write_tasks(run, donors, pending)):
        shard = run.identity.shards[number]
        if isinstance(outcome, ShardRecord):
            run.commit(shard, outcome)
            written += outcome.samples
            progress.samples(written)
            progress.shard(shard.name, outcome.samples, outcome.error or None)
        else:
            failed[shard.name] = outcome
            progress.shard(shard.name, 0, outcome)
    return written, failed


def _donating(run: Injection, plan: NoisePlan, starts: np.ndarray) -> Iterator[IndexedShard]:
    """Every shard as a source of captions and images."""
    for number, shard in enumerate(run.identity.shards):
        index = _index(run, number)
        pairs = moving_images(plan, starts, number)
        if not index.compressed or not len(pairs):
            yield IndexedShard(index, shard.url, packed=False)
            continue
        packed = run.images(number)
        if not stores.ask("read", packed, packed.exists):
            _pack_images(shard, image_spans(index, pairs), packed)
        yield IndexedShard(index, str(packed), packed=True)


def _pack_images(shard: ShardRef, spans: np.ndarray, target: UPath) -> None:
    """Take members out of a compressed shard, which cannot be read from the middle."""
    # In the order of the shard; rows of interleaved samples need not be in it.
    order = np.argsort(spans[:, 0])
    places = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
    with published(target) as aside, open_tar(shard) as source, aside.open("wb") as sink:
        for which in order.tolist():
            begin, end = spans[which].tolist()
            source.seek(begin)
            sink.seek(int(places[which]))
            sink.write(source.read(end - begin))


@dataclass(frozen=True)
class _WriteTask:
    """One shard to write: everything a process needs to know."""

    shard: ShardRef
    index: ShardIndex
    edits: dict[int, PairEdit]
    unchanged: dict[str, int]
    target: str
    caption_key: str | None


def _write_tasks(
    run: Injection, donors: Donors, pending: list[int]
) -> Iterator[tuple[int, tuple[_WriteTask]]]:
    for number in pending:
        shard = run.identity.shards[number]
        edits, unchanged = donors.edits_of(number)
        task = _WriteTask(
            shard,
            _index(run, number),
            edits,
            unchanged,
            str(run.shard(shard)),
            run.identity.caption_key,
        )
        yield number, (task,)


def _write_shard(task: _WriteTask) -> ShardRecord | str:
    """Write and publish one shard; a sentence if its bytes cannot be had."""
    index = task.index
    try:
        source = open_tar(task.shard)
    except OSError as error:
        return stores.explain(task.shard.url, error, "read")
    try:
        with (
            source,
            published(stores.location(task.target)) as aside,
            aside.open("wb") as file,
            _compressing(file, task.target) as sink,
        ):
            rewritten = write_noisy(source, index, task.edits, sink, task.caption_key)
    except ShardError as error:
        return str(error)
    return ShardRecord(
        samples=index.samples,
        pairs=index.pairs,
        noisy=dict(Counter(edit.kind for edit in task.edits.values())),
        unchanged=task.unchanged,
        error=index.error,
        **dataclasses.asdict(rewritten),
    )


@contextlib.contextmanager
def _compressing(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """A sink that compresses if the name says so; the same bytes whenever it is written."""
    if not name.endswith((".gz", ".tgz")):
        yield file
        return
    with gzip.GzipFile("", "wb", 6, file, mtime=0) as sink:
        yield cast(IO[bytes], sink)


class _Workers:
    """Calls functions in processes, or in this one if there is little to do."""

    def __init__(self, workers: int | None, shards: Sequence[ShardRef]) -> None:
        worth = sum(shard.size for shard in shards) // _BYTES_WORTH_A_PROCESS
        self._workers = min(workers or min(os.cpu_count() or 1, max(worth, 1)), len(shards))
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> _Workers:
        if self._workers > 1:
            # Fork would copy the threads of torch, if it has been loaded. Ctrl-C is the parent's.
            context = multiprocessing.get_context("spawn")
            ignore = (signal.SIGINT, signal.SIG_IGN)
            self._pool = ProcessPoolExecutor(self._workers, context, signal.signal, ignore)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[..., T], tasks: Iterable[tuple[int, tuple[Any, ...]]]
    ) -> Iterator[tuple[int, T]]:
        """Results with the number of their task, as they come; few tasks exist at a time."""
        if self._pool is None:
            for number, arguments in tasks:
                yield number, function(*arguments)
            return
        running: dict[Future[T], int] = {}
        for number, arguments in tasks:
            running[self._pool.submit(function, *arguments)] = number
            if len(running) > self._workers:
                yield from _finished(running)
        while running:
            yield from _finished(running)


def _finished(running: dict[Future[T], int]) -> Iterator[tuple[int, T]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        yield running.pop(future), future.result()


def _index(run: Injection, number: int) -> ShardIndex:
    index = run.index(number)
    if index is None:
        raise InputError(f"the index of shard {number} in {run.out} is gone: run the command again")
    return index


def _check_apart(out: UPath, identity: InjectionIdentity) -> None:
    """Raise `InputError` if the output would overwrite the input."""
    inputs = {_place(shard.url) for shard in identity.shards}
    for shard in identity.shards:
        target = str(Injection(out, identity).shard(shard))
        if _place(target) in inputs:
            raise InputError(f"--out {out} would overwrite the input {target}; choose another")


def _place(path: str) -> str:
    return path if stores.is_url(path) else os.path.realpath(path)


def _summarize(
    run: Injection, failed: dict[str, str], written: int, seconds: float
) -> NoiseSummary:
    records = run.done.values()
    noisy, unchanged = _sums(r.noisy for r in records), _sums(r.unchanged for r in records)
    pairs = sum(record.pairs for record in records)
    planned = run.planned or {}
    broken = {name: record.error for name, record in run.done.items() if record.error}
    return NoiseSummary(
        shards=len(run.identity.shards),
        shards_failed=len(broken) + len(failed),
        failed_shards={**broken, **failed},
        samples=sum(record.samples for record in records),
        pairs=pairs,
        planned=planned,
        noisy={kind: noisy.get(kind, 0) for kind in planned},
        left_in_place={
            kind: count - noisy.get(kind, 0) - unchanged.get(kind, 0)
            for kind, count in planned.items()
            if kind in PERMUTING
        },
        unchanged={kind: unchanged.get(kind, 0) for kind in planned},
        shortage={
            kind: missing
            for kind, count in planned.items()
            if (missing := noise_count(run.identity.rates[kind], pairs) - count) > 0
        },
        already_noisy=sum(record.already_noisy for record in records),
        json_added=sum(record.json_added for record in records),
        json_replaced=sum(record.json_replaced for record in records),
        samples_per_second=round(written / seconds, 1) if written else None,
        seconds=round(seconds, 2),
        out=str(run.out),
    )


def _sums(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter()))
