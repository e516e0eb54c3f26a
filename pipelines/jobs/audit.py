"""Audits: a sample drawn and its page written; answers measured, and the calibration moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ncclean import stores
from ncclean.atomic import published
from ncclean.auditing.measure import Audit as Measured
from ncclean.auditing.measure import measure
from ncclean.auditing.sample import draw_sample
from ncclean.auditing.table import AuditTable
from ncclean.config import CalibrationOptions
from ncclean.data.sources import resolve_pairs
from ncclean.execution.score_corpus import calibrate_again
from ncclean.output_mark import check_free
from ncclean.report.audit_page import AuditPair, read_pictures, render_audit
from ncclean.storage.same_corpus import check_same_corpus

from ..audit import Audit
from ..progress import Progress

PAGE, SAMPLE = "audit.html", "sample.parquet"


@dataclass(frozen=True)
class WrittenAudit:
    """What was drawn and written. `strata` are low, high, pairs and drawn pairs of each."""

    pairs: int
    pictures: int
    strata: tuple[tuple[float, float, int, int], ...]
    bytes: int
    page: str
    sample: str
    missing_shards: list[str] = field(default_factory=list)
    failed_shards: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        names = ("low", "high", "pairs", "drawn")
        return {
            **self.__dict__,
            "strata": [dict(zip(names, stratum, strict=True)) for stratum in self.strata],
        }


def write_audit(command: Audit, progress: Progress) -> WrittenAudit:
    """Draw the sample, read its pictures, write the page and `sample.parquet`.

    Raises `InputError` for a table without noise probabilities and for shards of another corpus. A
    shard that breaks off does not raise: it is named in the result.
    """
    assert command.out is not None
    folder = stores.location(command.out)
    check_free([str(folder / PAGE), str(folder / SAMPLE)], command.name, command.overwrite)
    shards = resolve_pairs(command.shards, command.image_root) if command.shards else None
    progress.say("drawing the sample")
    with AuditTable.open(command.scores, memory_limit=command.memory_limit) as table:
        sample = draw_sample(table, command.pairs, command.seed)
    pairs = AuditPair.of(sample.rows)
    pictures = None
    if shards is not None:
        check_same_corpus(command.scores, shards)
        progress.say(f"reading the pictures of {len(pairs):,} pairs")
        pictures = read_pictures(pairs, shards)
    title = command.title or command.scores[0].rstrip("/").rsplit("/", 1)[-1]
    html = render_audit(sample, pairs, pictures, title).encode()
    with published(folder / PAGE) as aside:
        aside.write_bytes(html)
    sample.write(folder / SAMPLE, command.seed)
    ends = [0.0, *sample.design.bounds.tolist(), 1.0]
    drawn = sample.drawn()
    return WrittenAudit(
        pairs=len(pairs),
        pictures=pictures.count if pictures is not None else 0,
        strata=tuple(
            (ends[n], ends[n + 1], int(count), int(drawn[n]))
            for n, count in enumerate(sample.design.pairs)
        ),
        bytes=len(html),
        page=f"{command.out.rstrip('/')}/{PAGE}",
        sample=f"{command.out.rstrip('/')}/{SAMPLE}",
        missing_shards=pictures.missing_shards if pictures is not None else [],
        failed_shards=pictures.failed_shards if pictures is not None else {},
    )


def measure_answers(command: Audit, progress: Progress) -> Measured:
    """Measure the table by the answers; with `--apply`, move its calibration to them."""
    assert command.answers is not None
    progress.say("measuring")
    audit = measure(
        command.scores,
        command.answers,
        sample=command.sample,
        selection=command.selection,
        partly=command.partly,
        cannot_tell=command.cannot_tell,
        memory_limit=command.memory_limit,
    )
    if command.apply:
        calibrate_again(command.scores[0], CalibrationOptions(), audit=audit, progress=progress)
    return audit
