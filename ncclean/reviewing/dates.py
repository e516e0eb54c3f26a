"""Order pairs by the dates on which their images were taken, stated only in the images."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from datetime import datetime, timezone

import pyarrow as pa
import pyarrow.parquet as pq

from ncclean.errors import InputError
from ncclean.reviewing.conditions import Matches
from ncclean.reviewing.pictures import Pictures
from ncclean.reviewing.table import Request, ReviewTable

MOST_PICTURES = 20_000  # each read whole, some hundreds a second
_AT_ONCE = 500  # images, after which the end of a review is noticed


class Dates:
    """Reads the dates on which the images of a view were taken, each once."""

    def __init__(
        self, table: ReviewTable, pictures: Pictures, most_pictures: int = MOST_PICTURES
    ) -> None:
        self._table, self._pictures, self._most = table, pictures, most_pictures
        self._lock = threading.Lock()
        self._taken: dict[int, datetime | None] = {}
        self._last: tuple[Request, Matches] | None = None

    def of_row(self, place: int) -> str | None:
        """Return the date on which the image of the row at a place was taken, if already read."""
        taken = self._taken.get(place)
        return None if taken is None else taken.isoformat(" ", "minutes")

    def ranking(self, request: Request, matches: Matches | None, anew: bool = False) -> Matches:
        """Write the dates of a request's images as seconds, by place, to sort by.

        Without a date, the value is null. Raises `InputError` for too many pairs.
        """
        with self._lock:
            if not anew and self._last is not None and self._last[0] == request:
                return self._last[1]
            view = self._table.view(replace(request, sort=""), matches, anew)
            if view.pairs > self._most:
                raise InputError(
                    f"dates are in the pictures, of which at most {self._most:,} are read: "
                    "choose a view, a range or words for fewer pairs"
                )
            places: list[int] = []
            for rows in self._table.pages(view, _AT_ONCE):
                places += (row["place"] for row in rows)
                unread = [row for row in rows if row["place"] not in self._taken]
                self._taken |= self._pictures.dates(unread)
            dates = [self._taken.get(place) for place in places]
            seconds = [date and date.replace(tzinfo=timezone.utc).timestamp() for date in dates]
            out = self._table.work / f"dates_{uuid.uuid4().hex}.parquet"
            ranking = Matches(out)
            columns = {
                "place": pa.array(places, pa.uint64()),
                "value": pa.array(seconds, pa.float64()),
            }
            pq.write_table(pa.table(columns), out)
            self._last = request, ranking
            return ranking
