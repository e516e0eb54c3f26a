"""Rendering a corpus and its held-out sets into a folder, whose record tells what was written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from upath import UPath

from ncclean.data.synthetic.corpus import write_corpus
from ncclean.data.synthetic.heldout import write_heldout
from ncclean.storage.run_record import Identity, RunRecord

from ..command import identity
from ..progress import Progress
from ..synth import Synth
from .outputs import finished, written_aside

HELD_OUT = "heldout"
RECORD = "_synth.jsonl"


@dataclass(frozen=True)
class RenderedCorpus:
    """`seconds` is the rendering of the shards, without the held-out sets."""

    out: str
    shards: int
    pairs: int
    seconds: float


def render(command: Synth, progress: Progress) -> RenderedCorpus:
    """Render the shards and the held-out sets; what was interrupted is rendered anew.

    Raises `InputError` if a shard is there already that no rendering made, `ResumeError` if the
    folder holds another corpus.
    """
    out = Path(command.out)
    with _open(command, command.overwrite) as record:
        done = finished(record)
    if done is not None:
        progress.say(f"{command.out} holds this corpus already")
        return RenderedCorpus(**done["corpus"])
    with _open(command, True) as record:
        progress.say(f"rendering {command.options.pairs:,} pairs")
        begin = time.perf_counter()
        pairs, shard_size = command.options.pairs, command.options.shard_size
        shards = write_corpus(
            out,
            command.options,
            command.workers,
            lambda done: progress.advance(min(done * shard_size, pairs), pairs, "pairs"),
        )
        seconds = time.perf_counter() - begin
        if command.held_out:
            progress.say("rendering held-out sets")
            with written_aside(out / HELD_OUT, record) as aside:
                write_heldout(aside, command.held_out, command.seed)
        rendered = RenderedCorpus(command.out, len(shards), pairs, round(seconds, 3))
        record.append("done", corpus=asdict(rendered))
    return rendered


def _open(command: Synth, overwrite: bool) -> RunRecord:
    out = UPath(command.out)

    def shards(run: Identity) -> Iterator[UPath]:
        options = run["options"]
        count = -(-options["pairs"] // options["shard_size"])
        return (out / f"{number:05d}.tar" for number in range(count))

    return RunRecord.open(
        out / RECORD, command.name, identity(command), overwrite=overwrite, files=shards
    )
