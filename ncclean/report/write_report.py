"""Write a report: measure the score table, choose pairs, read their images, write the page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from ncclean.auditing.judge_answers import NO_JUDGE, JudgeAnswers
from ncclean.auditing.measure import measure
from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.figure_files import write_figure
from ncclean.base.progress import SILENT, Progress
from ncclean.data.fetch import ImageFetcher
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.explaining.cause_table import check_examples, read_causes
from ncclean.report.figures import FIGURES
from ncclean.report.measurements import Measurements, measure_table
from ncclean.report.page import Page, render
from ncclean.report.pairs import cards_of, choose_pairs
from ncclean.report.table import ScoreTable
from ncclean.report.thumbnails import Pictured, Thumbnails, read_thumbnails
from ncclean.selection.decided import Decisions
from ncclean.storage.same_corpus import as_scored
from ncclean.storage.tables import fingerprints, say_others

_FORMATS = ("pdf", "png", "svg")


@dataclass(frozen=True)
class WrittenReport:
    """A written report: its measurements and the other content of its page."""

    numbers: Measurements
    page: Page
    bytes: int
    seconds: float
    out: str
    figures: list[str] = field(default_factory=list)

    @property
    def failed_shards(self) -> dict[str, str]:
        """The shards that could not be read up to a chosen pair, with the reason."""
        return self.page.thumbnails.failed_shards if self.page.thumbnails is not None else {}

    def to_json(self) -> dict[str, Any]:
        page, pictures = self.page, self.page.thumbnails or Thumbnails()
        return {
            **self.numbers.to_json(),
            "audit": page.audit.to_json() if page.audit is not None else None,
            "decided": page.decided,
            "decided_elsewhere": page.decided_elsewhere,
            "pairs_shown": len(page.pairs),
            "pictures": pictures.count(page.pairs),
            "shards_failed": len(self.failed_shards),
            "failed_shards": self.failed_shards,
            "missing_shards": pictures.missing_shards,
            "figures": self.figures,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 2),
            "out": self.out,
        }


def write_report(
    scores: Sequence[str],
    out: str,
    *,
    shards: Sequence[ShardRef] | None = None,
    pairs: int = 24,
    title: str | None = None,
    figures: str | None = None,
    answers: str | Sequence[str] = (),
    judge: JudgeAnswers = NO_JUDGE,
    decisions: Sequence[str] = (),
    causes: str | None = None,
    join: Sequence[str] = (),
    memory_limit: str | None = None,
    progress: Progress = SILENT,
) -> WrittenReport:
    """Measure a score table, choose pairs, read their images, and write the page and figures.

    `pairs` of each group are shown, with images if there are `shards`; `figures` is the folder of
    the figures, `answers` the files of an audit, in addition to which a `judge` may have answered,
    `decisions` those of reviews, which are counted, `causes` a table of `ncclean explain`. Raises
    `InputError` if the table cannot be read or the page would be too large. A broken shard does not
    raise: the result names it.
    """
    start = time.perf_counter()
    progress.say("reading the score table")
    table = ScoreTable.open(scores, memory_limit, join)
    cards = None
    if causes is not None:
        rows = read_causes(causes)
        check_examples(rows, table.connection, causes)
        say_others({causes: [causes]}, scores)
        cards = cards_of(rows)
    numbers = measure_table(table)
    chosen = choose_pairs(table, pairs)
    audit = None
    if answers:
        progress.say("measuring by the answers")
        audit = measure(scores, answers, judge=judge, memory_limit=memory_limit)
    reviewed = Decisions({})
    if decisions:
        reviewed = Decisions.read(decisions, scored=fingerprints(scores))
    decided, decided_elsewhere = reviewed.counts(table.connection) if decisions else (None, 0)
    thumbnails = None
    if shards is not None:
        shards = as_scored(scores, shards, progress.say)
        examples = [example for card in cards or () for example in card.examples]
        pictured: list[Pictured] = [*chosen, *examples]
        progress.say(f"reading the pictures of {len(pictured)} pairs")
        places = table.places([(pair.shard, pair.row) for pair in pictured])
        thumbnails = read_thumbnails(pictured, shards, places, ImageFetcher(progress.say))
    page = Page(
        title=title or scores[0].rstrip("/").rsplit("/", 1)[-1],
        paths=scores,
        made=date.today(),
        pairs=chosen,
        thumbnails=thumbnails,
        join=join,
        audit=audit,
        decided=decided,
        decided_elsewhere=decided_elsewhere,
        decisions={pair: decision.decision for pair, decision in reviewed.by_pair.items()},
        sources={shard.name: shard for shard in shards or ()},
        causes=cards,
    )
    html = render(numbers, page).encode()
    with published(stores.location(out)) as aside:
        aside.write_bytes(html)
    return WrittenReport(
        numbers=numbers,
        page=page,
        bytes=len(html),
        seconds=time.perf_counter() - start,
        out=out,
        figures=_write_figures(numbers, figures, progress) if figures else [],
    )


def figure_paths(folder: str | None) -> list[str]:
    """Return the paths of all figures that a report may write into a folder."""
    names = [f"{name}.{kind}" for name in FIGURES for kind in _FORMATS]
    return [str(stores.location(folder) / name) for name in names] if folder else []


def _write_figures(numbers: Measurements, folder: str, progress: Progress) -> list[str]:
    """Write every figure that the table has numbers for, in every format; return the paths."""
    progress.say(f"drawing the figures in {folder}")
    written = []
    for name, draw in FIGURES.items():
        try:
            figure = draw(numbers)
        except InputError:  # the page says what is missing
            continue
        for kind in _FORMATS:
            path = f"{folder.rstrip('/')}/{name}.{kind}"
            write_figure(figure, path, "report")
            written.append(path)
    return written
