"""Inject noise: copy shards, with known noise.

There are two passes. The first indexes the captions and image places of every shard, and reads the
captions of donors. Once the number of pairs is known, the noise is planned; the second pass copies
the shards with it. Both take a shard at a time, in any order and in any number of processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, cast

import numpy as np
import pyarrow as pa
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.config import TaskOptions
from ncclean.base.formats import counted
from ncclean.base.progress import SILENT, Progress
from ncclean.data.captions import error_of, read_captions
from ncclean.data.counting import estimate_samples
from ncclean.data.images.as_tar import open_as_tar
from ncclean.data.inject import SampleEdit, write_noisy
from ncclean.data.moved_pairs import gather_moved, side_by_side
from ncclean.data.noise import NoisePlan, plan_noise
from ncclean.data.noise_files import FilePlaces, write_noise_file
from ncclean.data.shard_index import (
    FACTS,
    IMAGE,
    images_of,
    index_shard,
    is_first,
    is_packed_index,
    pairs_of,
    samples_in,
)
from ncclean.data.shards import WEBDATASET, ShardRef
from ncclean.data.tar_ranges import RangeWriter, local_tar
from ncclean.errors import InputError, ShardError
from ncclean.runners.opened import open_runner
from ncclean.runners.process_runner import processes_worth
from ncclean.runners.runner import Runner
from ncclean.storage.injection import (
    Injection,
    InjectionIdentity,
    NoiseSummary,
    ShardRecord,
    keep_table,
    kept_table,
    summarize,
)

# `synth` has stream 0: with the same seed, noise would otherwise hit the pairs it made noisy.
_STREAM = 1


def inject_noise(
    identity: InjectionIdentity,
    out: UPath,
    tasks: TaskOptions,
    *,
    overwrite: bool = False,
    new_file: UPath | None = None,
    progress: Progress = SILENT,
) -> NoiseSummary:
    """Copy shards with injected noise, resuming an interrupted run.

    `new_file` is the path for a noise file, see `ncclean.data.noise_files`. Raises `InputError` or
    `ResumeError` before writing anything if the request cannot be met. A broken shard does not
    raise: its readable part is treated as usual, and the rest is copied.
    """
    begin = time.perf_counter()
    _check_apart(out, identity, new_file)
    run = Injection.open(out, identity, overwrite=overwrite)
    written = 0
    failed: dict[str, str] = {}
    try:
        pending = run.pending()
        if pending or new_file is not None:
            processes = processes_worth(tasks.workers, identity.shards)
            with open_runner(tasks, processes) as workers:
                planned = _plan(run, workers, progress)
                if new_file is not None:
                    write_noise_file(new_file, planned.places.file(planned.plan))
                written, failed = _write_all(run, workers, planned, pending, progress)
        if not failed:
            run.remove_working_files()
    finally:
        run.close()
    return summarize(run, failed, written, time.perf_counter() - begin)


@dataclass(frozen=True)
class _Planned:
    """The plan, the (S + 1,) number of images before each shard, and the image of each caption."""

    plan: NoisePlan
    starts: np.ndarray
    own: np.ndarray
    places: FilePlaces


def _plan(run: Injection, workers: Runner, progress: Progress) -> _Planned:
    """Plan the noise of the whole corpus, indexing what is not yet indexed."""
    identity = run.identity
    _read_shards(run, "index", index_shard, workers, progress)
    _read_shards(run, "donors", read_captions, workers, progress)
    donors = sum(len(table) for table in _tables(run, "donors", ["text"]))
    if identity.donors and not donors:
        raise InputError(
            f"{identity.donors[0].url} holds no captions: name another corpus with --donors"
        )
    parts = list(_tables(run, "index", FACTS))
    samples = np.cumsum([0, *map(samples_in, parts)])
    facts = pa.concat_tables(parts)
    listed = facts["row"].to_numpy() + np.repeat(samples[:-1], [len(part) for part in parts])
    is_usable = facts["changeable"].is_valid().to_numpy()
    rows = listed[is_usable]
    is_new = is_first(rows)
    images, own = rows[is_new], np.cumsum(is_new) - 1
    places = FilePlaces(np.bincount(listed), images, own, facts["number"].to_numpy()[is_usable])
    try:
        if not len(own):
            raise InputError(
                f"none of the {int(samples[-1]):,} samples can be made noisy: each lacks its "
                "image or its caption (see --image-root, --caption-key)"
            )
        if identity.noise_file is not None:
            plan = places.plan(identity.noise_file)
        else:
            plan = plan_noise(
                len(own),
                identity.rates,
                identity.seed,
                batch_size=identity.batch_size,
                changeable=facts["changeable"].drop_null().to_numpy(),
                stream=_STREAM,
                donors=donors,
                images=own if len(own) > len(images) else None,
            )
    except InputError:
        run.forget()  # nothing is written yet, and a corrected command is another run
        raise
    run.record_plan(plan.planned)
    return _Planned(plan, np.searchsorted(images, samples), own, places)


def _read_shards(
    run: Injection,
    name: str,
    read: Callable[[ShardRef, str | None], pa.Table],
    workers: Runner,
    progress: Progress,
) -> None:
    """Store the tables of those shards, or `donors`, that have none yet."""
    shards, of_donors = run.sources(name), " of donors" if name == "donors" else ""
    places = [run.working_file(name, number) for number in range(len(shards))]
    missing = [number for number, place in enumerate(places) if kept_table(place, []) is None]
    if missing:
        progress.say(f"reading captions of {counted(len(missing), 'shard')}{of_donors}")
    key = run.identity.caption_key
    tasks = ((number, (shards[number].absolute(), key)) for number in missing)
    for number, table in workers.map(read, tasks):
        if of_donors and (error := error_of(table)):
            progress.say(f"donors {shards[number].name}: {error}")
        keep_table(places[number], table)


def _write_all(
    run: Injection, workers: Runner, planned: _Planned, pending: list[int], progress: Progress
) -> tuple[int, dict[str, str]]:
    """Write the pending shards; return the samples written, and why shards could not be."""
    expected = estimate_samples([run.identity.shards[number] for number in pending])
    progress.say(f"{counted(len(pending), 'shard')} to write, about {expected:,} samples")
    moved = gather_moved(
        planned.plan,
        planned.starts,
        planned.own,
        run.identity.seed,
        (pairs_of(table)["text"] for table in _tables(run, "index", [*FACTS, "text"])),
        (table["text"] for table in _tables(run, "donors", ["text"])),
        _moved_images(run, planned.plan, planned.starts),
    )
    tasks = (
        (
            number,
            (
                run.identity.shards[number].absolute(),
                _table(run, "index", number, FACTS),
                *moved.edits_of(number),
                stores.absolute(str(run.shard(run.identity.shards[number]))),
                run.identity.caption_key,
            ),
        )
        for number in pending
    )
    written = shards = 0
    failed: dict[str, str] = {}
    for number, outcome in workers.map(write_shard, tasks):
        shard = run.identity.shards[number]
        if isinstance(outcome, ShardRecord):
            run.commit(shard, outcome)
            written, shards = written + outcome.samples, shards + 1
            progress.advance(written, expected, "samples", shards=f"{shards:,}/{len(pending):,}")
        else:
            failed[shard.name] = outcome
        error = outcome if isinstance(outcome, str) else outcome.error
        if error:
            progress.say(f"shard {shard.name} failed: {error}")
    return written, failed


def _moved_images(run: Injection, plan: NoisePlan, starts: np.ndarray) -> pa.Table:
    """(L,) places of the images that move, see `MovedPairs`."""
    moved = [pa.table({"hash": [], "begin": [], "end": [], "url": []})]
    bounds = np.searchsorted(plan.images_moved, starts)
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        index = _table(run, "index", number, [*FACTS, *IMAGE])
        local = plan.images_moved[bounds[number] : bounds[number + 1]] - starts[number]
        images, shard = images_of(pairs_of(index)).take(local), run.identity.shards[number]
        url = shard.url
        if is_packed_index(index):
            place = run.working_file("images", number)
            if not stores.ask("read", place, place.exists):
                pack_images(shard, run.identity.caption_key, images, place)
            images, url = side_by_side(images), str(place)
        urls = pa.array([stores.absolute(url)] * len(images)).dictionary_encode()
        moved.append(images.append_column("url", urls))
    return pa.concat_tables(moved[1:] or moved).unify_dictionaries().combine_chunks()


def _tables(run: Injection, name: str, columns: list[str]) -> Iterator[pa.Table]:
    """Read the tables of all shards, or of all `donors`."""
    return (_table(run, name, number, columns) for number in range(len(run.sources(name))))


def _table(run: Injection, name: str, number: int, columns: list[str]) -> pa.Table:
    path = run.working_file(name, number)
    table = kept_table(path, columns)
    if table is None:
        raise InputError(f"{path.name} of {run.out} is gone: run the command again")
    return table


def _check_apart(out: UPath, identity: InjectionIdentity, new_file: UPath | None) -> None:
    """Raise `InputError` if the output or a noise file would overwrite the input."""
    inputs = {stores.canonical(shard.url) for shard in (*identity.shards, *identity.donors)}
    targets = [str(Injection(out, identity).shard(shard)) for shard in identity.shards]
    for target in targets:
        if stores.canonical(target) in inputs:
            raise InputError(f"--out {out} would overwrite the input {target}; choose another")
    taken = inputs.union(map(stores.canonical, targets))
    if new_file is not None and stores.canonical(str(new_file)) in taken:
        raise InputError(f"--write-noise-file {new_file} is one of the shards; choose another")


def write_shard(
    shard: ShardRef,
    index: pa.Table,
    edits: dict[int, SampleEdit],
    unchanged: dict[str, int],
    target: str,
    caption_key: str | None,
) -> ShardRecord | str:
    """Write a shard with noise, whole or not at all; return a sentence if its bytes are broken.

    Needs the columns `FACTS` of its index.
    """
    pairs = pairs_of(index)["row"].to_numpy()
    rows = pairs[is_first(pairs)].tolist()
    try:
        with published(stores.location(target)) as aside:
            with (
                _local(shard, caption_key) as source,
                aside.open("wb") as file,
                _compressing(file, target) as sink,
            ):
                rewritten = write_noisy(source, shard, rows, edits, sink, caption_key)
            size = aside.stat().st_size
    except ShardError as error:
        return str(error)
    return ShardRecord(
        samples=samples_in(index),
        pairs=len(pairs),
        noisy=dict(Counter(kind for edit in edits.values() for kind in edit.kinds if kind)),
        unchanged=unchanged,
        error=error_of(index),
        bytes=size,
        **dataclasses.asdict(rewritten),
    )


def _local(
    shard: ShardRef, caption_key: str | None
) -> contextlib.AbstractContextManager[IO[bytes]]:
    is_remote = shard.layout == WEBDATASET and stores.is_url(shard.url)
    return local_tar(functools.partial(open_as_tar, shard, caption_key), is_remote, [])


@contextlib.contextmanager
def _compressing(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """Return a sink that compresses if the name says so, always to the same bytes."""
    if not name.endswith((".gz", ".tgz")):
        yield file
        return
    with gzip.GzipFile("", "wb", 6, file, mtime=0) as sink:
        yield cast(IO[bytes], sink)


def pack_images(shard: ShardRef, caption_key: str | None, images: pa.Table, target: UPath) -> None:
    """Copy images of a compressed shard, which has no random access, to a separate file."""
    with published(target) as aside, _local(shard, caption_key) as source, aside.open("wb") as sink:
        out = RangeWriter(sink)
        out.read_from(source)
        for image in images.to_pylist():
            out.copy(image["begin"], image["end"])
        out.flush()
