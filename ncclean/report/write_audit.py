"""The page of an audit: a sample drawn, its pictures read, the files written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclean.auditing.answers import read_answers
from ncclean.auditing.judge import Judge
from ncclean.auditing.judge_answers import NO_JUDGE, JudgeAnswers
from ncclean.auditing.sample import draw_sample
from ncclean.auditing.table import AuditTable
from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.progress import SILENT, Progress
from ncclean.data.shards import ShardRef
from ncclean.report.audit_page import AuditPair, read_pictures, render_audit
from ncclean.storage.same_corpus import as_scored

PAGE, SAMPLE = "audit.html", "sample.parquet"


@dataclass(frozen=True)
class WrittenAudit:
    """The drawn sample and its files. `strata` are low, high, pairs and drawn pairs of each."""

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


def write_audit(
    scores: Sequence[str],
    out: str,
    *,
    shards: Sequence[ShardRef] | None = None,
    pairs: int = 300,
    seed: int = 0,
    judge: JudgeAnswers = NO_JUDGE,
    answered: Sequence[str] = (),
    title: str | None = None,
    memory_limit: str | None = None,
    progress: Progress = SILENT,
) -> WrittenAudit:
    """Draw the sample, read its pictures, write the page and `sample.parquet`.

    With a `judge`, pairs are drawn by its answers; pairs of the files `answered` are left out.

    Raises `InputError` for a table without noise probabilities and for shards of another corpus. A
    shard that breaks off does not raise: it is named in the result.
    """
    folder = stores.location(out)
    progress.say("drawing the sample")
    by_judge = Judge.read(judge, "match", "leave-out")
    before = read_answers(*answered).by_pair if answered else ()
    with AuditTable.open(scores, memory_limit=memory_limit, judge=by_judge) as table:
        sample = draw_sample(table, pairs, seed, before)
    judged = AuditPair.of(sample.rows)
    pictures = None
    if shards is not None:
        shards = as_scored(scores, shards)
        progress.say(f"reading the pictures of {len(judged):,} pairs")
        pictures = read_pictures(sample.rows, shards, progress.say)
    title = title or scores[0].rstrip("/").rsplit("/", 1)[-1]
    html = render_audit(sample, judged, pictures, title).encode()
    with published(folder / PAGE) as aside:
        aside.write_bytes(html)
    sample.write(folder / SAMPLE, seed)
    ends = [0.0, *sample.design.bounds.tolist(), 1.0]
    drawn = sample.drawn()
    return WrittenAudit(
        pairs=len(judged),
        pictures=pictures.count if pictures is not None else 0,
        strata=tuple(
            (ends[n], ends[n + 1], int(count), int(drawn[n]))
            for n, count in enumerate(sample.design.pairs)
        ),
        bytes=len(html),
        page=f"{out.rstrip('/')}/{PAGE}",
        sample=f"{out.rstrip('/')}/{SAMPLE}",
        missing_shards=pictures.missing_shards if pictures is not None else [],
        failed_shards=pictures.failed_shards if pictures is not None else {},
    )
