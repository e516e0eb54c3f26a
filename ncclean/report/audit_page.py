"""The page of an audit: one pair at a time, judged by keys or by touch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ncclean.auditing.answers import ANSWERS, Design, read_answers
from ncclean.auditing.judge import Judge
from ncclean.auditing.judge_answers import NO_JUDGE, JudgeAnswers
from ncclean.auditing.judge_audit import JUDGED
from ncclean.auditing.sample import Sample, draw_sample
from ncclean.auditing.table import AuditTable
from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.progress import SILENT, Progress
from ncclean.data.fetch import ImageFetcher
from ncclean.data.shards import ShardRef
from ncclean.report.formats import shown_text
from ncclean.report.page import asset, content_policy, render_page
from ncclean.report.thumbnails import (
    LARGE_SIZES,
    Pictured,
    Thumbnail,
    Thumbnails,
    places_of,
    read_thumbnails,
)
from ncclean.storage.same_corpus import as_scored

_LONGEST_CAPTION = 4_000  # bytes
_LONGEST_WORD = 100
_ALL_PICTURES = 24_000_000  # bytes as base64; a phone opens such a page in a second
_NO_PICTURE = Thumbnail(reason="no picture: the page was made without --shards")
PAGE, SAMPLE = "audit.html", "sample.parquet"


@dataclass(frozen=True, kw_only=True)
class AuditPair(Pictured):
    """A pair of an audit's sample, as the page shows it."""

    uid: str
    caption_number: int
    stratum: int
    text: str
    url: str | None
    suspect_word: str | None = None
    better_word: str | None = None
    judge: str | None = None

    @classmethod
    def of(cls, rows: pa.Table) -> tuple[AuditPair, ...]:
        """Build the pairs of the audit page from the rows of a sample, in order."""
        names = ("uid", "caption_number", "stratum", "shard", "key", "row", "text", "url",
                 "suspect_word", "better_word", "judge")  # fmt: skip
        return tuple(
            cls(**{**row, "text": row["text"] or "", "judge": JUDGED.get(row["judge"])})
            for row in rows.select(names).to_pylist()
        )


def read_pictures(
    rows: pa.Table, shards: Iterable[ShardRef], say: Callable[[str], None] = lambda text: None
) -> Thumbnails:
    """Read the images of an audit's sample, larger than those of a report.

    `say` is for `ImageFetcher`.
    """
    pairs, fetcher = AuditPair.of(rows), ImageFetcher(say)
    return read_thumbnails(pairs, shards, places_of(rows), fetcher, _ALL_PICTURES, LARGE_SIZES)


def render_audit(
    sample: Sample, pairs: Sequence[AuditPair], pictures: Thumbnails | None, title: str
) -> str:
    """Return the HTML page on which a person judges a sample; it loads nothing from elsewhere.

    Nothing on the page states the noise probability, which would suggest an answer. The suspect
    word, and another judge's answer, are shown only with an answered pair, and at the end on how
    many pairs both agree.
    """
    style, script = asset("audit.css"), asset("audit.js")
    uris = pictures.pictures if pictures is not None else {}
    judge = " --judge-answers judge.parquet" if any(pair.judge for pair in pairs) else ""
    data = {
        "name": _name(pairs, sample.design),
        "answers": ANSWERS,
        "design": sample.design.to_json(),
        "pairs": [_shown(pair, uris.get((pair.shard, pair.row), _NO_PICTURE)) for pair in pairs],
    }
    return render_page(
        "audit",
        f"Audit of {title}",
        style,
        script,
        data,
        content_policy(style, script),
        name=title,
        pairs=len(pairs),
        measure=f"ncclean audit {title} --answers answers.json{judge}",
    )


def _shown(pair: AuditPair, picture: Thumbnail) -> dict[str, Any]:
    caption, left_out = shown_text(pair.text, _LONGEST_CAPTION)
    words = pair.suspect_word or "", pair.better_word or ""
    is_web = pair.url is not None and pair.url.startswith(("http://", "https://"))
    return {
        "uid": pair.uid,
        "caption_number": pair.caption_number,
        "stratum": pair.stratum,
        "caption": caption,
        "leftOut": left_out,
        "words": [shown_text(word, _LONGEST_WORD)[0] for word in words] if all(words) else None,
        "judge": pair.judge,
        "picture": picture.url,
        "reason": picture.reason,
        "link": pair.url if is_web and picture.url is None else None,
    }


def _name(pairs: Sequence[AuditPair], design: Design) -> str:
    """Return a name of the sample, under which a browser keeps its answers."""
    text = repr([(pair.uid, pair.caption_number) for pair in pairs]) + repr(design.to_json())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class WrittenAudit:
    """A drawn sample and its files; `strata` has low, high, pairs and drawn pairs of each."""

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
    """Draw a sample to judge, read its images, and write the page and `sample.parquet`.

    With a `judge`, its answers guide the draw; pairs of the files `answered` are excluded.

    Raises `InputError` for a table without noise probabilities and for shards of another corpus. A
    broken shard does not raise: the result names it.
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
        shards = as_scored(scores, shards, progress.say)
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
        pictures=pictures.count(judged) if pictures is not None else 0,
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
