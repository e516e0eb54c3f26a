"""The measurements and pictures as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import ncclean
from ncclean.auditing.audit import Audit
from ncclean.base.formats import file_size, short_rate
from ncclean.base.schema import SCORE_COLUMNS
from ncclean.data.images.folders import Folder
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError
from ncclean.report import formats
from ncclean.report.captions import shown_text
from ncclean.report.causes import CauseCard
from ncclean.report.drawing import cosine_drawing, threshold_drawing
from ncclean.report.measurements import Measurements
from ncclean.report.pairs import GROUPS, ShownPair
from ncclean.report.plots import NARROW, WIDE, lay_out
from ncclean.report.queries import command, ready_queries, threshold_query
from ncclean.report.thresholds import ScoreCurve
from ncclean.report.thumbnails import Thumbnail, Thumbnails
from ncclean.storage.decisions import Pair

LARGEST_PAGE = 5_000_000  # bytes
_MEANINGS = {column.name: column.meaning for column in SCORE_COLUMNS}
_LONGEST_KEY = 4096  # bytes
_PLACEHOLDER = Thumbnail(reason="no pictures: the report was made without --shards")


@dataclass(frozen=True)
class Page:
    """The content of a page besides the measurements. `thumbnails` is None without shards.

    `join` are the joined tables, as `ncclean query` takes them, `audit` what answers measured,
    `decided` how many pairs people decided about, by decision, and `decisions` those about pairs
    that are shown. `causes` is None without a table. `sources` are the files or folders of the
    shards, by their names.
    """

    title: str
    paths: Sequence[str]
    made: date
    pairs: Sequence[ShownPair] = ()
    thumbnails: Thumbnails | None = None
    join: Sequence[str] = ()
    audit: Audit | None = None
    decided: dict[str, int] | None = None
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
    html = environment().get_template("report.html").render(
        numbers=numbers,
        facts=facts,
        counts=numbers.counts,
        page=page,
        groups=[(g, [(i, p) for i, p in enumerate(page.pairs) if p.group == g]) for g in GROUPS],
        cause_pictures={
            (p.shard, p.row): pictures.get((p.shard, p.row), _PLACEHOLDER)
            for cause in page.causes or ()
            for p in cause.examples
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
        version=ncclean.__version__,
        style=Markup(style),
        script=Markup(script),
        data=script_json(_data(numbers, page)),
        policy=f"default-src 'none'; img-src data:; style-src '{content_hash(style)}'; "
        f"script-src '{content_hash(script)}'; base-uri 'none'; form-action 'none'",
    )  # fmt: skip
    size = len(html.encode())
    if size > LARGEST_PAGE:
        raise InputError(
            f"the report would take {file_size(size)}, more than {file_size(LARGEST_PAGE)}: "
            "show fewer pairs with --pairs"
        )
    return html


def script_json(value: object) -> Markup:
    """JSON for an HTML script element, escaped so that no text in it ends the element."""
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
                "uid": pair.uid,
                "number": pair.caption_number,
                "original": original_of(pair, _source(page, pair.shard)),
                "decision": page.decisions.get((pair.uid, pair.caption_number)),
                "further": {name: _finite(value) for name, value in pair.further.items()},
            }
            for pair in page.pairs
        ],
    }


def original_of(pair: ShownPair, shard: ShardRef | None) -> str:
    """Return where the original of a pair lies, to copy: `FILE KEY`, or the files of a folder."""
    key = shown_text(pair.key, _LONGEST_KEY)[0]  # a pasted line break runs a command
    if shard is None:
        return f"{pair.shard} {key}"
    place = shard.recorded().url
    return f"{place}/{key}.*" if shard.layout == Folder.name else f"{place} {key}"


def _source(page: Page, name: str) -> ShardRef | None:
    return page.sources.get(name) or page.sources.get(name.rsplit("/", 1)[-1])


def _threshold_query(numbers: Measurements, condition: str) -> str:
    return threshold_query(condition, calibrated=numbers.counts.calibrated > 0)


def _live_query(numbers: Measurements, page: Page) -> str | None:
    if not numbers.curves:
        return None
    first = numbers.curves[0]
    return command(_threshold_query(numbers, first.condition(first.start)), page.paths, page.join)


def _finite(value: float | int | str | bool) -> float | int | str | bool | None:
    """JSON has no nan and no infinity."""
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


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The Jinja2 environment of the page templates; every value is escaped."""
    environment = Environment(
        loader=PackageLoader("ncclean.report"),
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
    )
    return environment


def asset(name: str) -> str:
    """Read a file beside the page templates, such as the shared style."""
    return files("ncclean.report").joinpath("templates", name).read_text("utf-8").strip()


def content_hash(text: str) -> str:
    """The hash by which a content security policy allows an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
