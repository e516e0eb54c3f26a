"""The report stage: a score table, and the shards for pictures, to one HTML file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from ncclean import stores
from ncclean.atomic import published
from ncclean.data.shards import SUFFIXES, resolve_shards
from ncclean.errors import InputError
from ncclean.report.figures import FIGURES
from ncclean.report.measurements import Measurements as ReportNumbers
from ncclean.report.measurements import measure_table
from ncclean.report.page import Page, render
from ncclean.report.pairs import ShownPair, choose_pairs
from ncclean.report.table import ScoreTable
from ncclean.report.thumbnails import Thumbnails, read_thumbnails
from ncclean.storage.same_corpus import check_same_corpus

from .progress import NoProgress, Progress

MOST_PAIRS = 300
_FORMATS = ("pdf", "png", "svg")
_DOTS_PER_INCH = 200


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """A report as a user asks for it; `paths` and `shards` may be URLs of object stores.

    `pairs` is how many are shown of each group; `figures` a folder for the same plots as PDF,
    PNG and SVG; `made` the date on the page, today's without.
    """

    paths: Sequence[str]
    out: str
    shards: Sequence[str] = ()
    title: str | None = None
    pairs: int = 24
    figures: str | None = None
    memory_limit: str | None = None
    made: date | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.pairs <= MOST_PAIRS:
            raise InputError(f"--pairs takes 0 to {MOST_PAIRS}, got {self.pairs}")
        if self.out.endswith((".parquet", *SUFFIXES)):  # a slip that would cost a table or a shard
            raise InputError(f"--out of report is an HTML file, got {self.out!r}")
        for path in self.paths:
            if path.endswith(SUFFIXES):
                raise InputError(
                    f"{path} is a shard, not a score table: quote the pattern after --shards"
                )

    @property
    def shown_title(self) -> str:
        """The title, or the name of the first table."""
        return self.title or self.paths[0].rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True)
class ReportResult:
    """What was written, and the numbers in it."""

    numbers: ReportNumbers
    pairs: tuple[ShownPair, ...]
    thumbnails: Thumbnails | None
    bytes: int
    seconds: float
    out: str
    figures: list[str] = field(default_factory=list)

    @property
    def failed_shards(self) -> dict[str, str]:
        return self.thumbnails.failed_shards if self.thumbnails is not None else {}

    def to_json(self) -> dict[str, Any]:
        numbers, facts = self.numbers, self.numbers.facts
        truth = numbers.overlap.truth
        first = numbers.curve("noise_probability")
        return {
            "rows": numbers.counts.rows,
            "ok": numbers.counts.ok,
            "failures": {each.status: each.count for each in numbers.counts.failures},
            "shards": numbers.shards.total,
            "noise_rate": facts.noise_rate,
            "noise_rate_low": facts.noise_rate_low,
            "noise_rate_high": facts.noise_rate_high,
            "shift": facts.shift,
            "null_median": numbers.cosines.null_median if numbers.cosines else None,
            "expected_mismatched": numbers.counts.expected_mismatched,
            "kept_at_half": int(first.kept(first.pairs)[first.start]) if first else None,
            "expected_mismatched_kept_at_half": float(first.kept(first.wrong)[first.start])
            if first and first.wrong is not None
            else None,
            "rules": {
                rule.name: numbers.overlap.both(i, i)
                for i, rule in enumerate(numbers.overlap.rules)
            },
            "jaccard": {
                rule.name: {
                    other.name: numbers.overlap.jaccard(i, j)
                    for j, other in enumerate(numbers.overlap.rules)
                }
                for i, rule in enumerate(numbers.overlap.rules)
            },
            "detection": None
            if truth is None
            else {
                found.rule.name: {
                    "precision": found.precision,
                    "recall": found.recall,
                    "f1": found.f1,
                    "clean_flagged": found.false_alarms,
                    "recall_by_kind": found.by_kind,
                }
                for found in truth.detections
            },
            "missing": list(numbers.missing),
            "pairs_shown": len(self.pairs),
            "pictures": self.thumbnails.count if self.thumbnails is not None else 0,
            "shards_failed": len(self.failed_shards),
            "failed_shards": self.failed_shards,
            "missing_shards": self.thumbnails.missing_shards if self.thumbnails else [],
            "figures": self.figures,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 2),
            "out": self.out,
        }


def report(request: ReportRequest, progress: Progress | None = None) -> ReportResult:
    """Measure the table, pick pairs, read their pictures, write the page and the figures.

    Raises `InputError` if the table cannot be read, a path of `shards` holds none, or the page
    would be too large. A shard that breaks off does not raise: it is named in the result.
    """
    progress = progress or NoProgress()
    begin = time.perf_counter()
    shards = resolve_shards(request.shards) if request.shards else None
    progress.stage("reading the score table")
    table = ScoreTable.open(request.paths, request.memory_limit)
    numbers = measure_table(table)
    pairs = choose_pairs(table, request.pairs)
    thumbnails = None
    if shards is not None:
        check_same_corpus(request.paths, shards)
        progress.stage(f"reading the pictures of {len(pairs)} pairs")
        thumbnails = read_thumbnails(pairs, shards)
    page = Page(
        title=request.shown_title,
        paths=request.paths,
        made=request.made or date.today(),
        pairs=pairs,
        thumbnails=thumbnails,
    )
    html = render(numbers, page).encode()
    with published(stores.location(request.out)) as aside:
        aside.write_bytes(html)
    return ReportResult(
        numbers=numbers,
        pairs=pairs,
        thumbnails=thumbnails,
        bytes=len(html),
        seconds=time.perf_counter() - begin,
        out=request.out,
        figures=_write_figures(numbers, request.figures, progress) if request.figures else [],
    )


def _write_figures(numbers: ReportNumbers, folder: str, progress: Progress) -> list[str]:
    """Every figure that the table has numbers for, in every format; returns the paths."""
    progress.stage(f"drawing the figures in {folder}")
    where = stores.location(folder)
    written = []
    for name, draw in FIGURES.items():
        try:
            figure = draw(numbers)
        except InputError:  # the page says what is missing
            continue
        for kind in _FORMATS:
            target = where / f"{name}.{kind}"
            with published(target) as aside:
                # No time of writing inside: the same table gives the same bytes.
                metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
                figure.savefig(aside, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
            written.append(str(target if stores.is_url(folder) else Path(folder) / target.name))
    return written
