"""A score table as a review reads it: the order of a view, made once, and its rows as one scrolls.

A view is a table of row places in DuckDB, eight bytes a pair, which DuckDB puts on disk where they
exceed its memory. The rows of a page are read from the Parquet files by their places.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from ncclean.errors import InputError
from ncclean.reviewing.views import PROBABILITIES, View, order_by, scores_of, views_of
from ncclean.storage.catalog import first_line
from ncclean.storage.expressions import Expression
from ncclean.storage.joined import JoinedScores
from ncclean.storage.quoting import identifier, quoted
from ncclean.storage.tables import table_files

_WITHIN = (1 << 40) - 1  # of a place: the row in its file
_OPEN_VIEWS = 8
_BINS = 64
_BATCH = 5_000

# What a card shows; columns that a table lacks are null.
CARD_COLUMNS = (
    "uid", "caption_number", "shard", "key", "row", "status", "error", "text", "url",
    "similarity", "noise_probability", "near_miss_probability", "part_noise_probability",
    "suspect_word", "better_word", "worst_part_number", "part_starts", "part_noise_probabilities",
    "pair_group", "image_group", "better_captions", "better_images", "is_noisy", "noise_kind",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """Request of a person: a view, a score to sort by and its range, SQL, undecided pairs only."""

    view: str = "suspects"
    score: str | None = None
    low: float | None = None
    high: float | None = None
    where: str = ""
    undecided: bool = False


@dataclass(frozen=True)
class OpenView:
    """The order of a view: a table of row places called `order_<number>`."""

    number: int
    pairs: int
    score: str | None


class ReviewTable:
    """Score files, with joined tables beside them, as pages of views.

    One connection, `lock` around each use: threads of the server take turns.
    """

    def __init__(self, scores: JoinedScores, where: Expression | None) -> None:
        self.lock = threading.RLock()
        self._scores = scores
        self.connection = scores.connection
        files = scores.prepare(scores.names.types, [where] if where is not None else [])
        self._files = table_files(files)
        self._there = set(scores.names.types)
        self._where = where.sql if where is not None else "true"
        number = "caption_number" if "caption_number" in self._there else "0"
        for name in ("uid", "shard", "key", "row", "status"):
            if name not in self._there:
                raise InputError(f"{files[0]} is not a score table: it has no column {name}")
        self.connection.execute(
            f"CREATE TEMP VIEW pairs AS SELECT *, coalesce({number}, 0)::SMALLINT AS _number FROM "
            "(SELECT *, (file_index::UBIGINT << 40) | file_row_number AS _place "
            f"FROM read_parquet([{', '.join(map(quoted, self._files))}], union_by_name=true)) "
            f"WHERE coalesce(({self._where})::BOOLEAN, false)"
        )
        told = {
            name
            for name in self._there & {"noise_probability", *PROBABILITIES}
            if self._run(f"SELECT 1 FROM pairs WHERE {name} IS NOT NULL LIMIT 1")
        }
        self.views = {view.name: view for view in views_of(self._there, told)}
        self.scores = scores_of(self._there)
        self._open: OrderedDict[Request, OpenView] = OrderedDict()
        self._made = 0

    @classmethod
    def open(
        cls,
        paths: Sequence[str],
        joins: Sequence[str] = (),
        where: str | None = None,
        memory_limit: str | None = None,
    ) -> ReviewTable:
        """Open score files and the tables to join; `where` leaves out the pairs it is false for."""
        scores = JoinedScores.open(paths, joins, memory_limit)
        try:
            condition = (
                scores.expression(where, "--where", is_condition=True)
                if where is not None
                else None
            )
            return cls(scores, condition)
        except BaseException:
            scores.close()
            raise

    def close(self) -> None:
        """Close the connection and remove the temporary files."""
        self._scores.close()

    def counts(self) -> dict[str, int]:
        """Number of pairs of each view, in one pass."""
        views = list(self.views.values())
        columns = ", ".join(f"count(*) FILTER ({view.condition})" for view in views)
        row = self._run(f"SELECT {columns} FROM pairs")[0]
        return {view.name: count for view, count in zip(views, row, strict=True)}

    def view(self, request: Request, anew: bool = False) -> OpenView:
        """The order of what is asked for, made unless it is there; `anew` after decisions.

        Raises `InputError` for SQL that is no condition over the columns.
        """
        with self.lock:
            if request in self._open and not anew:
                self._open.move_to_end(request)
                return self._open[request]
            view = self._view(request)
            condition = self._condition(request, view)
            order = order_by(request.score) + ", _place" if request.score else view.order
            if "_place" not in order:
                order += ", _place"
            self._made += 1
            name = f"order_{self._made}"
            undecided = (
                "(SELECT pairs.* FROM pairs ANTI JOIN decided ON pairs.uid = decided.uid "
                "AND pairs._number = decided.caption_number)"
            )
            self._run(
                f"CREATE TEMP TABLE {name} AS SELECT _place AS place "
                f"FROM {undecided if request.undecided else 'pairs'} "
                f"WHERE {condition} ORDER BY {order}"
            )
            count = self._run(f"SELECT count(*) FROM {name}")[0][0]
            self._forget(request)
            opened = OpenView(self._made, count, request.score or view.score)
            self._open[request] = opened
            while len(self._open) > _OPEN_VIEWS:
                self._forget(next(iter(self._open)))
            return opened

    def histogram(self, request: Request) -> dict[str, Any]:
        """Counts of the score of a view in equal bins, whatever range is chosen of it."""
        view = self._view(request)
        score = request.score or view.score
        if score is None or score not in self._there:
            return {"score": None, "low": 0.0, "high": 1.0, "counts": []}
        column = f"{identifier(score)}::DOUBLE"
        whole = dataclasses.replace(request, low=None, high=None)
        source = f"FROM pairs WHERE {self._condition(whole, view)} AND isfinite({column})"
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
        """The rows of a view from one number on, in its order."""
        with self.lock:
            places = self._run(
                f"SELECT place FROM order_{view.number} WHERE rowid >= {int(start)} "
                f"AND rowid < {int(start) + int(count)} ORDER BY rowid"
            )
            rows = self._rows([place for (place,) in places])
        return [rows[place] for (place,) in places]

    def batches(self, view: OpenView) -> Iterator[list[dict[str, Any]]]:
        """All rows of a view that are undecided, some at a time."""
        for start in range(0, view.pairs, _BATCH):
            with self.lock:
                rows = self.page(view, start, _BATCH)
                decided = set(
                    self._run(
                        "SELECT DISTINCT uid, caption_number FROM decided "
                        "WHERE list_contains(?, uid)",
                        [[row["uid"] for row in rows]],
                    )
                )
            yield [row for row in rows if (row["uid"], row["caption_number"]) not in decided]

    def _rows(self, places: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Rows by place, from the files that hold them: the statistics of row groups find them."""
        if not places:
            return {}
        numbers = sorted({place >> 40 for place in places})
        files = ", ".join(quoted(self._files[number]) for number in numbers)
        columns = ", ".join(
            identifier(name) if name in self._there else f"NULL AS {identifier(name)}"
            for name in CARD_COLUMNS
        )
        rows = self._run(
            f"SELECT file_index, file_row_number, {columns} "
            f"FROM read_parquet([{files}], union_by_name=true) WHERE file_row_number IN "
            f"({', '.join(str(place & _WITHIN) for place in places)})"
        )
        wanted = set(places)
        found = {}
        for file, row, *values in rows:
            place = (numbers[file] << 40) | row
            if place in wanted:
                fields = dict(zip(CARD_COLUMNS, values, strict=True))
                fields["caption_number"] = fields["caption_number"] or 0
                found[place] = {"place": place, **fields}
        return found

    def _view(self, request: Request) -> View:
        if request.view not in self.views:
            raise InputError(f"there is no view {request.view!r}")
        if request.score is not None and request.score not in self.scores:
            raise InputError(f"there is no score {request.score!r}")
        return self.views[request.view]

    def _condition(self, request: Request, view: View) -> str:
        conditions = [f"({view.condition})"]
        score = request.score or view.score
        if score is not None:
            for bound, sign in ((request.low, ">="), (request.high, "<=")):
                if bound is not None:
                    conditions.append(f"{identifier(score)}::DOUBLE {sign} {float(bound)!r}")
        if request.where.strip():
            expression = self._scores.expression(request.where, "the condition", is_condition=True)
            if expression.ranks:
                raise InputError("the condition: rank() is for --where, when the review starts")
            conditions.append(f"coalesce(({expression.sql})::BOOLEAN, false)")
        return " AND ".join(conditions)

    def _forget(self, request: Request) -> None:
        opened = self._open.pop(request, None)
        if opened is not None:
            self._run(f"DROP TABLE order_{opened.number}")

    def _run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            try:
                rows: list[tuple[Any, ...]] = self.connection.execute(sql, list(values)).fetchall()
            except duckdb.Error as error:
                raise InputError(f"the table cannot be read: {first_line(error)}") from error
        return rows
