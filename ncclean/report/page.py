"""Render measurements and images as one self-contained HTML file, with SQL for further work."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import ncclean
from ncclean.auditing.audit import Audit
from ncclean.base.formats import file_size, hours, short_rate
from ncclean.base.schema import SCORE_COLUMNS
from ncclean.data.images.folders import Folder
from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.report import formats
from ncclean.report.curves import ScoreCurve
from ncclean.report.formats import shown_text
from ncclean.report.measurements import Measurements
from ncclean.report.pairs import GROUPS, CauseCard, ShownPair
from ncclean.report.plots import NARROW, WIDE, cosine_drawing, lay_out, threshold_drawing
from ncclean.report.thumbnails import Thumbnail, Thumbnails
from ncclean.storage.decisions import Pair

LARGEST_PAGE = 5_000_000  # bytes
_MEANINGS = {column.name: column.meaning for column in SCORE_COLUMNS}
_LONGEST_KEY = 4096  # bytes
_PLACEHOLDER = Thumbnail(reason="no pictures: the report was made without --shards")


@dataclass(frozen=True)
class ReadyQuery:
    """An example query, for tables that have the columns `needs`."""

    title: str
    sql: str
    needs: tuple[str, ...] = ()


READY_QUERIES = (
    ReadyQuery(
        "The pairs most likely to be mismatched",
        "SELECT shard, key, round(similarity, 3) AS similarity,\n"
        "       round(noise_probability, 3) AS noise_probability, left(text, 80) AS caption\n"
        "FROM scores WHERE status = 'ok'\n"
        "ORDER BY noise_probability DESC, similarity LIMIT 20",
        ("noise_probability", "text"),
    ),
    ReadyQuery(
        "The noise rate of every shard, the noisiest first",
        "SELECT shard, count(*) AS pairs, round(avg(noise_probability), 4) AS noise_rate\n"
        "FROM scores WHERE status = 'ok'\n"
        "GROUP BY shard ORDER BY noise_rate DESC, shard",
        ("noise_probability",),
    ),
    ReadyQuery(
        "What could not be scored",
        "SELECT status, error, count(*) AS pairs\n"
        "FROM scores WHERE status <> 'ok'\n"
        "GROUP BY status, error ORDER BY pairs DESC, status, error LIMIT 50",
    ),
    ReadyQuery(
        "Where two rules disagree",
        "SELECT ncu_split, noise_probability >= 0.5 AS mismatched, count(*) AS pairs,\n"
        "       round(avg(similarity), 3) AS similarity\n"
        "FROM scores WHERE status = 'ok' GROUP BY ALL ORDER BY pairs DESC, ncu_split, mismatched",
        ("noise_probability", "ncu_split"),
    ),
    ReadyQuery(
        "The half of the corpus with the best in-batch-normalised score: its threshold",
        "SELECT quantile_cont(neg_clip_loss, 0.5) AS threshold\nFROM scores WHERE status = 'ok'",
        ("neg_clip_loss",),
    ),
    ReadyQuery(
        "Captions that occur many times",
        "SELECT left(text, 80) AS caption, count(*) AS pairs,\n"
        "       round(avg(noise_probability), 3) AS noise_probability\n"
        "FROM scores WHERE status = 'ok'\n"
        "GROUP BY text HAVING count(*) > 1 ORDER BY pairs DESC, caption LIMIT 20",
        ("text", "noise_probability"),
    ),
    ReadyQuery(
        "Where the truth is known: noisy pairs found and clean pairs lost at one half",
        "SELECT is_noisy, noise_kind, count(*) AS pairs,\n"
        "       round(avg((noise_probability >= 0.5)::INT), 4) AS share_flagged\n"
        "FROM scores WHERE status = 'ok' GROUP BY ALL ORDER BY is_noisy, pairs DESC",
        ("is_noisy", "noise_kind", "noise_probability"),
    ),
)


def threshold_query(condition: str, calibrated: bool) -> str:
    """Return SQL that counts the pairs a condition keeps, as the report's threshold does."""
    expected = ", round(sum(noise_probability), 1) AS expected_mismatched" if calibrated else ""
    return f"SELECT count(*) AS kept{expected}\nFROM scores WHERE {condition}"


def ready_queries(columns: Collection[str]) -> tuple[ReadyQuery, ...]:
    """Return example queries that a table with these columns can answer."""
    return tuple(query for query in READY_QUERIES if set(query.needs) <= set(columns))


def command(sql: str, paths: Sequence[str], join: Sequence[str] = ()) -> str:
    """Return the shell command that runs a query; its SQL needs no escaping in double quotes."""
    joins = [word for table in join for word in ("--join", table)]
    return f'ncclean query "{sql}" {shlex.join([*paths, *joins])}'


@dataclass(frozen=True)
class Page:
    """The content of a report's page besides the measurements.

    `thumbnails` is None without shards. `join` are the joined tables, as for `ncclean query`,
    `audit` the measurements from answers, `decided` the number of pairs by people's decision, and
    `decisions` those about pairs shown; `decided_elsewhere` counts decisions about pairs that the
    table lacks. `causes` is None without a table. `sources` are the files or folders of the shards,
    by their names.
    """

    title: str
    paths: Sequence[str]
    made: date
    pairs: Sequence[ShownPair] = ()
    thumbnails: Thumbnails | None = None
    join: Sequence[str] = ()
    audit: Audit | None = None
    decided: dict[str, int] | None = None
    decided_elsewhere: int = 0
    decisions: Mapping[Pair, str] = field(default_factory=dict)
    sources: Mapping[str, ShardRef] = field(default_factory=dict)
    causes: Sequence[CauseCard] | None = None


def render(numbers: Measurements, page: Page) -> str:
    """Render the HTML of a report. Raises `InputError` if it exceeds `LARGEST_PAGE`."""
    style = asset("report.css")
    script = "\n".join(map(asset, ("report.js", "report_decisions.js")))
    pictures = page.thumbnails.pictures if page.thumbnails is not None else {}
    facts = numbers.facts
    cosines = cosine_drawing(numbers.cosines, facts) if numbers.cosines is not None else None
    thresholds = {curve.column: threshold_drawing(curve) for curve in numbers.curves}
    html = render_page(
        "report",
        page.title,
        style,
        script,
        _data(numbers, page),
        content_policy(style, script),
        numbers=numbers,
        facts=facts,
        counts=numbers.counts,
        page=page,
        groups=[(g, [(i, p) for i, p in enumerate(page.pairs) if p.group == g]) for g in GROUPS],
        cause_pictures={
            (p.shard, p.row): pictures.get((p.shard, p.row), _PLACEHOLDER)
            for card in page.causes or ()
            for p in card.examples
        },
        pictures=[pictures.get((p.shard, p.row), _PLACEHOLDER) for p in page.pairs],
        cosine_plots=[lay_out(cosines, size) for size in (WIDE, NARROW)] if cosines else [],
        cosine_legend=cosines.legend if cosines else (),
        threshold_plots=[
            (column, lay_out(drawing, size))
            for column, drawing in thresholds.items()
            for size in (WIDE, NARROW)
        ],
        threshold_legend=next((drawing.legend for drawing in thresholds.values()), ()),
        queries=[
            (q.title, command(q.sql, page.paths)) for q in ready_queries(numbers.columns)
        ],
        live_query=_live_query(numbers, page),
    )  # fmt: skip
    size = len(html.encode())
    if size > LARGEST_PAGE:
        raise InputError(
            f"the report would take {file_size(size)}, more than {file_size(LARGEST_PAGE)}: "
            "show fewer pairs with --pairs"
        )
    return html


def render_page(
    command: str,
    title: str,
    style: str,
    script: str = "",
    data: object = None,
    policy: str | None = None,
    package: str = __package__ or "ncclean.report",
    **values: object,
) -> str:
    """Render a package's template named after a command inside the head and end of all pages.

    `data` is the JSON for the script. A page without a `policy` gets one in an HTTP header.
    """
    return (
        _environment(package)
        .get_template(f"{command}.html")
        .render(
            command=command,
            title=title,
            version=ncclean.__version__,
            style=Markup(style),
            script=Markup(script),
            data=script_json(data),
            policy=policy,
            **values,
        )
    )


def content_policy(style: str, script: str = "", images: str = "data:") -> str:
    """Return the content security policy of a page with one inline style and script.

    `images` are the sources of images that it allows.
    """
    scripts = f"script-src '{content_hash(script)}'; " if script else ""
    return (
        f"default-src 'none'; img-src {images}; style-src '{content_hash(style)}'; {scripts}"
        "base-uri 'none'; form-action 'none'"
    )


def script_json(value: object) -> Markup:
    """Return JSON for an HTML script element, escaped so that no text in it ends the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _data(numbers: Measurements, page: Page) -> dict[str, Any]:
    """The data for the page's script."""
    return {
        "liveQuery": command(_threshold_query(numbers, "CONDITION"), page.paths, page.join),
        "curves": [_curve(curve) for curve in numbers.curves],
        "meanings": {**_MEANINGS, **{n: f.label for n, f in numbers.joined_scores.items()}},
        "pairs": [
            {
                "group": pair.group,
                "shard": pair.shard,
                "key": pair.key,
                "row": pair.row,
                "status": pair.status,
                "error": pair.error,
                "url": pair.url,
                "width": pair.width,
                "height": pair.height,
                "leftOut": pair.caption_left_out,
                "scores": {name: _finite(value) for name, value in pair.scores.items()},
                "flags": pair.flags,
                # Of a repeated key, nothing can be decided: the uid is that of the first sample.
                "uid": pair.uid if pair.status != SkipReason.DUPLICATE_KEY.value else None,
                "number": pair.caption_number,
                "original": original_of(pair, page.sources.get(pair.shard)),
                "decision": page.decisions.get((pair.uid, pair.caption_number)),
                "further": {name: _finite(value) for name, value in pair.further.items()},
            }
            for pair in page.pairs
        ],
    }


def original_of(pair: ShownPair, shard: ShardRef | None) -> str:
    """Return where the original of a pair is, to be copied.

    It is `FILE KEY`, or the files of a folder.
    """
    key = shown_text(pair.key, _LONGEST_KEY)[0]  # a pasted line break runs a command
    if shard is None:
        return f"{pair.shard} {key}"
    url = shard.recorded().url
    return f"{url}/{key}.*" if shard.layout == Folder.name else f"{url} {key}"


def _threshold_query(numbers: Measurements, condition: str) -> str:
    return threshold_query(condition, calibrated=numbers.counts.calibrated > 0)


def _live_query(numbers: Measurements, page: Page) -> str | None:
    if not numbers.curves:
        return None
    first = numbers.curves[0]
    return command(_threshold_query(numbers, first.condition(first.start)), page.paths, page.join)


def _finite(value: float | int | str | bool) -> float | int | str | bool | None:
    """Replace nan and infinity, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _curve(curve: ScoreCurve) -> dict[str, Any]:
    def numbers(values: Any) -> list[float | None] | None:
        if values is None:
            return None
        return [round(float(v), 6) if v == v else None for v in values]

    return {
        "column": curve.column,
        "below": curve.keeps_below,
        "first": curve.grid.first,
        "multiple": curve.grid.multiple,
        "digits": curve.grid.digits,
        "start": curve.start,
        "pairs": [int(count) for count in curve.pairs],
        "wrong": numbers(curve.wrong),
        "noisy": None if curve.noisy is None else [int(count) for count in curve.noisy],
        "lowest": numbers(curve.lowest) if curve.score.follows_cosine else None,
    }


@lru_cache(maxsize=2)
def _environment(package: str) -> Environment:
    """The Jinja2 environment of a package's page templates; every value is escaped."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("ncclean.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=formats.count,
        expected=formats.expected,
        share=formats.share,
        short_rate=short_rate,
        decimal=formats.decimal,
        hours=hours,
    )
    return environment


def asset(name: str) -> str:
    """Read a file beside the page templates, such as the shared style."""
    return files("ncclean.report").joinpath("templates", name).read_text("utf-8").strip()


def content_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
