"""Read a score table for a review: order a view once, and read its rows on scrolling.

A view is a table of row places in DuckDB, eight bytes a pair, which DuckDB spills to disk if it
exceeds its memory. The rows of a page are read from the Parquet files by their places.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import unicodedata
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from ncclean.base.schema import PLACE_COLUMNS, SCORE_FACTS
from ncclean.data.samples import NO_PLACE, Place, SkipReason
from ncclean.data.shards import sizes_and_versions
from ncclean.errors import InputError
from ncclean.report.pairs import ALMOST, BORDERLINE, WRONG_SENTENCE
from ncclean.reviewing.conditions import PLACE, Condition, Conditions, Matches
from ncclean.storage.catalog import ROW_PLACE, first_line, scanned
from ncclean.storage.joined import JoinedScores
from ncclean.storage.quoting import identifier, natural_order, quoted

# Null in all rows if the estimator cannot tell.
PROBABILITIES = ("near_miss_probability", "part_noise_probability")
_WITHIN = (1 << 40) - 1  # of a place: the row in its file
_OPEN_VIEWS = 8
_BINS = 64
_BATCH = 5_000
NAME, DATE = "name", "date"
# Columns of a card; missing ones are null.
CARD_COLUMNS = (
    "uid", "caption_number", "shard", "key", "row", "status", "error", "text", "url",
    "similarity", "noise_probability", "near_miss_probability", "part_noise_probability",
    "suspect_word", "better_word", "worst_part_number", "part_starts", "part_noise_probabilities",
    "pair_group", "image_group", "better_captions", "better_images", "is_noisy", "noise_kind",
    *PLACE_COLUMNS,
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """A named view of the pairs: those for which a condition holds, in an order.

    `score` is drawn as a histogram. Tables that lack a column of `needs` do not have the view.
    """

    name: str
    title: str
    condition: str
    order: str
    score: str | None = None
    needs: tuple[str, ...] = ()


_MISMATCHED = View(
    "suspects",
    "Suspects",
    "noise_probability >= 0.5",
    "noise_probability DESC, similarity",
    "noise_probability",
    ("noise_probability",),
)
_UNCALIBRATED = View(
    "suspects", "Lowest cosines", "status = 'ok'", "similarity", "similarity", ("similarity",)
)
_FURTHER = (
    View(
        "near-misses",
        "Near misses",
        ALMOST,
        "near_miss_probability DESC, near_miss_score",
        "near_miss_probability",
        ("near_miss_probability", "noise_probability", "suspect_word"),
    ),
    View(
        "wrong-sentences",
        "Wrong sentences",
        WRONG_SENTENCE,
        "part_noise_probability DESC",
        "part_noise_probability",
        ("part_noise_probability", "noise_probability", "part_starts"),
    ),
    View(
        "borderline",
        "Borderline",
        BORDERLINE,
        "abs(noise_probability - 0.5)",
        "noise_probability",
        ("noise_probability",),
    ),
    View(
        "duplicates",
        "Near-duplicates",
        "pair_group IS NOT NULL",
        "pair_group, similarity DESC",
        "similarity",
        ("pair_group",),
    ),
    View(
        "image-duplicates",
        "Near-duplicate images",
        "image_group IS NOT NULL",
        "image_group, similarity DESC",
        "similarity",
        ("image_group",),
    ),
    View(
        "false-negatives",
        "False negatives",
        "status = 'ok' AND (better_captions > 0 OR better_images > 0) AND noise_probability < 0.5",
        "greatest(better_captions, better_images) DESC",
        "better_captions",
        ("better_captions", "better_images", "noise_probability"),
    ),
    View("failures", "Failures", "status <> 'ok'", "status"),
    View("all", "All pairs", "true", "_place"),
)


def views_of(columns: Collection[str], told: Collection[str]) -> tuple[View, ...]:
    """Return the views that a table supports, by its columns and non-null probabilities."""
    first = _MISMATCHED if "noise_probability" in told else _UNCALIBRATED
    views = (view for view in (first, *_FURTHER) if set(view.needs) <= set(columns))
    return tuple(
        replace(view, title=f"{view.title}: the estimator cannot tell")
        if view.score in PROBABILITIES and view.score not in told
        else view
        for view in views
    )


def scores_of(columns: Collection[str]) -> dict[str, str]:
    """Return the scores by which pairs can be sorted, with their labels for people."""
    return {name: facts.label for name, facts in SCORE_FACTS.items() if name in columns}


def order_by(score: str) -> str:
    """Return SQL for an ORDER BY that puts the pairs first that a score considers noisy."""
    facts = SCORE_FACTS[score]
    return f"{identifier(score)} {'ASC' if facts.higher_is_cleaner else 'DESC'} NULLS LAST"


@dataclass(frozen=True)
class Request:
    """A request for pairs to see: a view, the range of a score, further conditions and an order.

    `where` is SQL, `search` are words in captions, folders or file names; `undecided` leaves out
    decided pairs. Pairs are sorted by `score` or, with `sort`, by `NAME` of the file or by `DATE`,
    on which an image was taken. `meaning` are words, and `like` is the place of a row, to whose
    image the `side` of the pairs is compared: the nearest come first. `page` is the reader: it goes
    on in the order that it opened, whatever others open later.
    """

    view: str = "suspects"
    score: str | None = None
    low: float | None = None
    high: float | None = None
    where: str = ""
    search: str = ""
    sort: str = ""
    meaning: str = ""
    like: int | None = None
    side: str = "image"
    undecided: bool = False
    page: str = ""


@dataclass(frozen=True)
class OpenView:
    """A view in its order, as the table `order_<number>` of row places, dropped with this object.

    It has `pairs` rows; `score` is drawn as a histogram.
    """

    number: int
    pairs: int
    score: str | None


class ReviewTable:
    """Score files, with joined tables beside them, from which pages of views are read.

    `files` have the rows that are shown, `scored` are the score files as they were opened. It is
    thread-safe: each query has its own cursor, and waits for no other. Text typed by a person is
    not run here, but by `conditions`.
    """

    def __init__(
        self,
        scores: JoinedScores,
        files: Sequence[str],
        memory_limit: str | None,
        where: Matches | None = None,
    ) -> None:
        self._scores, self._where = scores, where
        self.connection, self.work = scores.connection, scores.work
        self.files, self.scored = tuple(files), scores.files
        self._versions = self._versions_now()
        self._there = set(scores.names.types)
        self.number = "caption_number" if "caption_number" in self._there else "0"
        for name in ("uid", "shard", "key", "row", "status"):
            if name not in self._there:
                raise InputError(f"{scores.paths[0]} is not a score table: it has no column {name}")
        self.conditions = Conditions(self.files, scores.names, memory_limit, scores.work)
        self._lock = threading.RLock()
        self._open: OrderedDict[Request, OpenView] = OrderedDict()
        self._orders = 0
        self._running: set[duckdb.DuckDBPyConnection] = set()
        self._has_ended = False
        self._run(
            f"CREATE VIEW pairs AS SELECT *, coalesce({self.number}, 0)::SMALLINT AS _number FROM "
            f"(SELECT *, {ROW_PLACE} AS {PLACE} "
            f"FROM {scanned(self.files)}) "
            # A sample that repeats a key has the uid, by which one decides, of the first.
            f"WHERE {_among(where)} AND status <> {quoted(SkipReason.DUPLICATE_KEY.value)}"
        )
        told = {
            name
            for name in self._there & {"noise_probability", *PROBABILITIES}
            if self._run(f"SELECT 1 FROM pairs WHERE {name} IS NOT NULL LIMIT 1")
        }
        self.views = {view.name: view for view in views_of(self._there, told)}
        self.scores = scores_of(self._there)

    @classmethod
    def open(
        cls,
        paths: Sequence[str],
        joins: Sequence[str] = (),
        where: str | None = None,
        memory_limit: str | None = None,
    ) -> ReviewTable:
        """Open score files and tables to join, without the pairs for which `where` is false."""
        scores = JoinedScores.open(paths, joins, memory_limit)
        try:
            read = [scores.expression(where, "--where", is_condition=True)] if where else []
            files = scores.prepare(scores.names.types, read)
            scores.work.mkdir(exist_ok=True)
            matches = None
            for expression in read:
                condition = Condition(tuple(files), scores.names, memory_limit, sql=expression.sql)
                matches = asyncio.run(condition.matches(scores.work))
            return cls(scores, files, memory_limit, matches)
        except BaseException:
            scores.close()
            raise

    def stop(self) -> None:
        """End all requests: evaluations of conditions are abandoned, queries are interrupted."""
        self.conditions.stop()
        with self._lock:
            self._has_ended = True
            for cursor in self._running:
                cursor.interrupt()

    def close(self) -> None:
        """Close the connection to the score files and remove the temporary files."""
        self._scores.close()

    def condition(self, request: Request) -> str:
        """Return SQL for the words and the condition that a person typed; "" without either."""
        named = [name for name in ("text", "image_path", "shard", "key") if name in self._there]
        # File names of macOS have accents as characters of their own; people type letters.
        texts = f"nfc_normalize(lower(concat_ws(' ', {', '.join(map(identifier, named))})))"
        search = unicodedata.normalize("NFC", request.search.lower())
        words = [f"contains({texts}, {quoted(word)})" for word in search.split()]
        if not words:
            return request.where  # alone, without a bracket that it could close
        return " AND ".join([*words, *([f"({request.where})"] if request.where else [])])

    def counts(self) -> dict[str, int]:
        """Return the number of pairs in each view, counted in one pass."""
        views = list(self.views.values())
        columns = ", ".join(f"count(*) FILTER ({view.condition})" for view in views)
        row = self._run(f"SELECT {columns} FROM pairs")[0]
        return {view.name: count for view, count in zip(views, row, strict=True)}

    def view(
        self,
        request: Request,
        matches: Matches | None = None,
        anew: bool = False,
        ranking: Matches | None = None,
    ) -> OpenView:
        """Return the pairs of a request in its order, cached unless `anew`, as after decisions.

        `matches` are the pairs of the request's condition, `ranking` has the values to sort by.
        Raises `InputError` for an unknown view or score.
        """
        with self._lock:
            opened = self._open.get(request)
            if opened is not None and not anew:
                self._open.move_to_end(request)
                return opened
            self._orders += 1
            order = self._orders
        view = self._view(request)
        sorting = order_by(request.score) if request.score else view.order
        if request.sort == NAME:
            name = "coalesce(image_path, key)" if "image_path" in self._there else "key"
            path = f"concat_ws('/', shard, {name})"
            sorting = f"{natural_order(path)}, _number"
        values = ""
        if ranking is not None:
            values = (
                f"LEFT JOIN read_parquet({quoted(str(ranking.file))}) AS ranking "
                f"ON pairs.{PLACE} = ranking.place"
            )
            is_date = request.sort == DATE
            sorting = f"ranking.value {'ASC' if is_date else 'DESC'} NULLS LAST"
            if is_date:
                sorting += f", {view.order}"
        undecided = (
            "(SELECT pairs.* FROM pairs ANTI JOIN decided_pairs AS decided "
            "ON pairs.uid = decided.uid AND pairs._number = decided.caption_number) AS pairs"
        )
        self._run(
            f"CREATE TABLE order_{order} AS SELECT {PLACE} AS place "
            f"FROM {undecided if request.undecided else 'pairs'} {values} "
            f"WHERE {self._condition(request, view, matches)} ORDER BY {sorting}, {PLACE}"
        )
        count = self._run(f"SELECT count(*) FROM order_{order}")[0][0]
        opened = OpenView(order, count, request.score or view.score)
        # Current readers may continue: the table is dropped with the last of them.
        weakref.finalize(opened, self._drop, order).atexit = False
        with self._lock:
            self._open[request] = opened
            self._open.move_to_end(request)
            while len(self._open) > _OPEN_VIEWS:
                self._open.popitem(last=False)
        return opened

    def histogram(self, request: Request, matches: Matches | None = None) -> dict[str, Any]:
        """Count the score of a request's pairs in equal bins, regardless of the chosen range.

        `matches` are the pairs of the request's condition.
        """
        view = self._view(request)
        score = request.score or view.score
        if score is None or score not in self._there:
            return {"score": None, "low": 0.0, "high": 1.0, "counts": []}
        column = f"{identifier(score)}::DOUBLE"
        source = f"FROM pairs WHERE ({view.condition}) AND {_among(matches)} AND isfinite({column})"
        low, high = self._run(f"SELECT min({column}), max({column}) {source}")[0]
        if low is None:
            return {"score": score, "low": 0.0, "high": 1.0, "counts": []}
        width = (high - low) / _BINS or 1.0
        rows = self._run(
            f"SELECT least(floor(({column} - {low!r}) / {width!r}), {_BINS - 1})::INT, count(*) "
            f"{source} GROUP BY 1"
        )
        counts = [0] * _BINS
        for number, count in rows:
            counts[number] = count
        return {"score": score, "low": low, "high": high, "counts": counts}

    def page(self, view: OpenView, start: int, count: int) -> list[dict[str, Any]]:
        """Return the rows of a view from number `start` on, in order."""
        places = self._run(
            f"SELECT place FROM order_{view.number} WHERE rowid >= {int(start)} "
            f"AND rowid < {int(start) + int(count)} ORDER BY rowid"
        )
        rows = self._rows([place for (place,) in places])
        return [rows[place] for (place,) in places]

    def rows_at(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at these places; places that the table lacks are left out."""
        rows = self._rows(places)
        return [rows[place] for place in places if place in rows]

    def shards(self) -> list[str]:
        """Return the names of the shards of the table's rows."""
        return [shard for (shard,) in self._run("SELECT DISTINCT shard FROM pairs ORDER BY shard")]

    def place_of(self, shard: str, key: str) -> Place:
        """Return where a sample's image is in its shard, as far as the table states it."""
        columns = [name if name in self._there else f"NULL AS {name}" for name in PLACE_COLUMNS]
        rows = self._run(
            f"SELECT {', '.join(columns)} FROM pairs WHERE shard = ? AND key = ? LIMIT 1",
            [shard, key],
        )
        return Place.of(*rows[0]) if rows else NO_PLACE

    def pages(self, view: OpenView, size: int = _BATCH) -> Iterator[list[dict[str, Any]]]:
        """Yield all rows of a view, `size` at a time."""
        for start in range(0, view.pairs, size):
            yield self.page(view, start, size)

    def batches(self, view: OpenView) -> Iterator[list[dict[str, Any]]]:
        """Yield all undecided rows of a view in batches."""
        for rows in self.pages(view):
            decided = set(
                self._run(
                    "SELECT DISTINCT uid, caption_number FROM decided_pairs "
                    "WHERE list_contains(?, uid)",
                    [[row["uid"] for row in rows]],
                )
            )
            yield [row for row in rows if (row["uid"], row["caption_number"]) not in decided]

    def _rows(self, places: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Read rows by place from their files, finding them by row group statistics."""
        if not places:
            return {}
        places = [place for place in places if 0 <= place >> 40 < len(self.files)]
        numbers = sorted({place >> 40 for place in places})
        files = [self.files[number] for number in numbers]
        columns = ", ".join(
            identifier(name) if name in self._there else f"NULL AS {identifier(name)}"
            for name in CARD_COLUMNS
        )
        rows = self._run(
            f"SELECT file_index, file_row_number, {columns} "
            f"FROM {scanned(files)} WHERE file_row_number IN "
            f"({', '.join(str(place & _WITHIN) for place in places)})"
        )
        wanted = set(places)
        by_place = {}
        for file, row, *values in rows:
            place = (numbers[file] << 40) | row
            if place in wanted:
                fields = dict(zip(CARD_COLUMNS, values, strict=True))
                fields["caption_number"] = fields["caption_number"] or 0
                by_place[place] = {"place": place, **fields}
        return by_place

    def _view(self, request: Request) -> View:
        if request.view not in self.views:
            raise InputError(f"there is no view {request.view!r}")
        if request.score is not None and request.score not in self.scores:
            raise InputError(f"there is no score {request.score!r}")
        return self.views[request.view]

    def _condition(self, request: Request, view: View, matches: Matches | None) -> str:
        conditions = [f"({view.condition})", _among(matches)]
        score = request.score or view.score
        if score is not None:
            for bound, sign in ((request.low, ">="), (request.high, "<=")):
                if bound is not None:
                    conditions.append(f"{identifier(score)}::DOUBLE {sign} {float(bound)!r}")
        return " AND ".join(conditions)

    def _drop(self, order: int) -> None:
        with contextlib.suppress(InputError):  # the review has ended
            self._run(f"DROP TABLE order_{order}")

    def _versions_now(self) -> list[tuple[int, str]]:
        try:
            return sizes_and_versions(self.files)
        except OSError:
            return []

    def _run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._has_ended:
                raise InputError("the review has ended")
            cursor = self.connection.cursor()
            self._running.add(cursor)
        try:
            rows: list[tuple[Any, ...]] = cursor.execute(sql, list(values)).fetchall()
            if self._versions_now() != self._versions:  # places would be those of other pairs
                raise InputError("the score table has been replaced: start the review again")
        except duckdb.Error as error:
            raise InputError(f"the table cannot be read: {first_line(error)}") from error
        finally:
            with self._lock:
                self._running.discard(cursor)
            cursor.close()
        return rows


def _among(matches: Matches | None) -> str:
    """Return SQL that is true for the pairs of a condition; for all without one."""
    if matches is None:
        return "true"
    return f"{PLACE} IN (SELECT place FROM read_parquet({quoted(str(matches.file))}))"
