"""Render a corpus and its held-out sets into a folder, recording what was written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from upath import UPath

from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.progress import SILENT, Progress
from ncclean.data.options import CorpusOptions
from ncclean.data.synthetic.corpus import write_corpus
from ncclean.data.synthetic.heldout import write_heldout
from ncclean.storage.run_folder import finished, written_aside
from ncclean.storage.run_record import RUN, Identity, RunRecord

HELD_OUT = "heldout"


@dataclass(frozen=True)
class RenderedCorpus:
    """A rendered synthetic corpus: where it is and what it holds.

    `seconds` excludes the held-out sets.
    """

    out: str
    shards: int
    pairs: int
    seconds: float


def render(
    out: str,
    options: CorpusOptions,
    run: Identity,
    *,
    held_out: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> RenderedCorpus:
    """Render a synthetic corpus and its held-out sets; an interrupted run restarts.

    Raises `InputError` if a shard exists that no rendering made, `ResumeError` if the folder holds
    another corpus. `held_out` images are in each held-out set; `run` is the identity of the run.
    """
    with _open(out, run, overwrite) as record:
        done = finished(record)
    if done is not None:
        progress.say(f"{out} holds this corpus already")
        return RenderedCorpus(**done["corpus"])
    with _open(out, run, True) as record:
        progress.say(f"rendering {options.pairs:,} pairs")
        begin = time.perf_counter()
        pairs, shard_size = options.pairs, options.shard_size
        shards = write_corpus(
            Path(out),
            options,
            workers,
            lambda done: progress.advance(min(done * shard_size, pairs), pairs, "pairs"),
        )
        seconds = time.perf_counter() - begin
        if held_out:
            progress.say("rendering held-out sets")
            with written_aside(Path(out) / HELD_OUT, record.made) as aside:
                write_heldout(aside, held_out, options.seed)
        rendered = RenderedCorpus(out, len(shards), pairs, round(seconds, 3))
        record.append("done", corpus=asdict(rendered))
    return rendered


def _open(out: str, run: Identity, overwrite: bool) -> RunRecord:
    folder = UPath(out)

    def shards(earlier: Identity) -> Iterator[UPath]:
        options = earlier["options"]
        count = -(-options["pairs"] // options["shard_size"])
        return (folder / f"{number:05d}.tar" for number in range(count))

    record = folder / WORKING_FOLDER / RUN
    return RunRecord.open(record, "synth", run, overwrite=overwrite, base=folder, files=shards)
