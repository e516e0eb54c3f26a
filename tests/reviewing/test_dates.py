"""Pairs in the order in which their pictures were taken, from files and from tars."""

import io
import tarfile
from dataclasses import replace

import pytest
from PIL import Image

import ncclean
from ncclean.data.sources import resolve_pairs
from ncclean.errors import InputError
from ncclean.reviewing.dates import Dates
from ncclean.reviewing.pictures import Pictures
from ncclean.reviewing.table import DATE, NAME, Request, ReviewTable
from tests import hostile

TAKEN = {"a": "2024:05:02 10:00:00", "b": None, "c": "2023:01:01 09:00:00", "d": "0000:00:00"}
BY_DATE = ["c", "a", "b", "d"]


def picture(number, taken):
    exif, out = Image.Exif(), io.BytesIO()
    if taken is not None:
        exif.get_ifd(0x8769)[0x9003] = taken
        exif[0x0132] = "2026:01:01 00:00:00" if taken.startswith("20") else taken  # when edited
    hostile.photo(seed=number).save(out, "JPEG", exif=exif)
    return out.getvalue()


@pytest.fixture(params=["folder", "tar"])
def review(request, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    members = {}
    for number, (key, taken) in enumerate(TAKEN.items()):
        members |= {f"{key}.jpg": picture(number, taken), f"{key}.txt": b"a photograph"}
    if request.param == "folder":
        for name, data in members.items():
            (source / name).write_bytes(data)
    else:
        with tarfile.open(source / "0.tar", "w") as tar:
            for name, data in members.items():
                facts = tarfile.TarInfo(name)
                facts.size = len(data)
                tar.addfile(facts, io.BytesIO(data))
    scores = str(tmp_path / "s.parquet")
    ncclean.score(str(source), scores, model="demo", precision="fp32", shift=0.2)
    table = ReviewTable.open([scores])
    yield table, Pictures(resolve_pairs([str(source)]), table.place_of)
    table.close()


def test_pictures_come_in_the_order_in_which_they_were_taken(review):
    table, taken = review[0], Dates(*review)
    request = Request(view="all", sort=DATE)
    # No pair is so similar: dates of other pairs of the view are not taken for those of all.
    taken.ranking(replace(request, score="similarity", low=2.0), None)
    view = table.view(request, ranking=taken.ranking(request, None))
    rows = table.page(view, 0, 10)
    assert [row["key"] for row in rows] == BY_DATE  # those that do not say when in the view's order
    said = [taken.of_row(row["place"]) for row in rows]
    assert said == ["2023-01-01 09:00", "2024-05-02 10:00", None, None]
    by_name = table.view(replace(request, sort=NAME))
    assert [row["key"] for row in table.page(by_name, 0, 10)] == sorted(TAKEN)


def test_dates_of_too_many_pictures_are_refused(review):
    with pytest.raises(InputError, match="at most 3 are read: choose a view"):
        Dates(*review, most_pictures=3).ranking(Request(view="all", sort=DATE), None)
