"""Views of a score table: which pairs, in which order, and what is done to all of them at once."""

from __future__ import annotations

import asyncio
import json
import os
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.requests import Request as HttpRequest
from upath import UPath

from ncclean.errors import InputError
from ncclean.reviewing.decided import Decided
from ncclean.reviewing.server import Server
from ncclean.reviewing.table import NAME, Request, ReviewTable
from ncclean.storage.decisions import DROP, KEEP

IMAGES = 320  # with two captions each


@pytest.fixture
def table(tmp_path):
    rows = [(image, number) for image in range(IMAGES) for number in (0, 1)]
    scores = [place / (2 * IMAGES - 1) for place in range(len(rows))]
    path = tmp_path / "scores.parquet"
    pq.write_table(
        pa.table(
            {
                "uid": [f"u{image}" for image, _ in rows],
                "caption_number": pa.array([number for _, number in rows], pa.int16()),
                "shard": ["a"] * len(rows),
                "key": [str(image) for image, _ in rows],
                "row": [image for image, _ in rows],
                "status": ["ok"] * len(rows),
                "text": ["a ball"] * len(rows),
                "similarity": scores,
                "noise_probability": [1 - score for score in scores],
            }
        ),
        path,
    )
    opened = ReviewTable.open([str(path)], memory_limit="400MB")
    yield opened
    opened.close()


@pytest.fixture
def decided(table, tmp_path):
    return Decided(table.connection, UPath(tmp_path / "d.parquet"), "anna")


@pytest.fixture
def server(table, decided):
    pictures = SimpleNamespace(expect=lambda pairs: list(pairs))
    return Server(table, decided, pictures, "scores", lambda: None)


def pairs_of(table, request, start=0, count=10_000):
    rows = table.page(table.view(request), start, count)
    return [(row["uid"], row["caption_number"]) for row in rows]


def asked(handler, query="", body=None):
    """The answer of a handler of the server."""
    data = b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http", "method": "GET" if body is None else "POST", "path": "/",
        "query_string": query.encode(),
        "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1:1")],
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": data, "more_body": False}

    return json.loads(asyncio.run(handler(HttpRequest(scope, receive))).body)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_table_that_was_replaced_is_refused(table, server, decided, is_there):
    """Pairs of other places were shown as suspects, and all of them dropped."""
    [path] = table.files
    assert pairs_of(table, Request(), count=1) == [("u0", 0)]
    rows = pq.read_table(path)
    os.remove(path)
    if is_there:
        pq.write_table(rows.take(list(reversed(range(len(rows))))), path)
    everything = {"request": {"view": "suspects"}, "decision": DROP}
    with pytest.raises(InputError, match="replaced"):
        pairs_of(table, Request(), count=1)
    with pytest.raises(InputError, match="replaced"):
        asked(server._decide_all, body=everything)
    assert decided.counts() == {}


def test_samples_that_repeat_a_key_are_not_decided(tmp_path):
    """They have the uid of the first sample, which was dropped with them."""
    columns = {"uid": ["u", "v", "u"], "shard": ["a"] * 3, "key": ["1", "2", "1"], "row": [0, 1, 2]}
    status = ["ok", "image_corrupt", "duplicate_key"]
    pq.write_table(pa.table({**columns, "status": status}), tmp_path / "s.parquet")
    table = ReviewTable.open([str(tmp_path / "s.parquet")])
    assert table.counts() == {"failures": 1, "all": 2}
    assert pairs_of(table, Request(view="failures")) == [("v", 0)]
    table.close()


def test_an_undecided_caption_stays_when_another_one_of_its_image_is_decided(table, decided):
    decided.decide([("u3", 0), ("u5", 1)], DROP)
    left = pairs_of(table, Request("all", undecided=True))
    assert len(left) == 2 * IMAGES - 2
    assert {("u3", 1), ("u5", 0)} <= set(left)
    assert not {("u3", 0), ("u5", 1)} & set(left)


def test_batches_pass_over_decided_pairs_only(table, decided, monkeypatch):
    monkeypatch.setattr("ncclean.reviewing.table._BATCH", 100)
    decided.decide([("u3", 0), ("u200", 1)], DROP)
    rows = [row for batch in table.batches(table.view(Request("all"))) for row in batch]
    left = {(row["uid"], row["caption_number"]) for row in rows}
    assert len(rows) == len(left) == 2 * IMAGES - 2
    assert not {("u3", 0), ("u200", 1)} & left


def test_a_range_holds_both_of_its_ends(table):
    low, high = 10 / (2 * IMAGES - 1), 19 / (2 * IMAGES - 1)
    assert table.view(Request("all", score="similarity", low=low, high=high)).pairs == 10


def test_a_histogram_has_equal_bins_of_what_a_condition_holds_for(table):
    histogram = table.histogram(Request("all", score="similarity"))
    assert (histogram["low"], histogram["high"]) == (0.0, 1.0)
    assert len(histogram["counts"]) == 64
    assert set(histogram["counts"]) <= {9, 10, 11}
    matches = asyncio.run(table.conditions.matches("row < 40"))
    narrow = table.histogram(Request("all", score="similarity", where="row < 40"), matches)
    assert sum(narrow["counts"]) == 80
    assert narrow["high"] == pytest.approx(79 / (2 * IMAGES - 1))


def test_a_score_sorts_the_noisiest_pairs_first(table):
    assert pairs_of(table, Request("all", score="similarity"), count=1) == [("u0", 0)]
    assert pairs_of(table, Request("all", score="noise_probability"), count=1) == [("u0", 0)]
    assert pairs_of(table, Request("borderline"), count=2)[0] in {("u159", 1), ("u160", 0)}
    with pytest.raises(InputError, match="no view"):
        table.view(Request("nothing"))
    with pytest.raises(InputError, match="no score"):
        table.view(Request("all", score="key"))


def test_a_request_gets_a_page_however_much_it_asks_for(server):
    answer = asked(server._rows, "view=all&count=100000&start=50")
    assert (answer["pairs"], answer["start"], len(answer["cards"])) == (2 * IMAGES, 50, 200)
    assert asked(server._rows, "view=all&count=-5")["cards"] == []
    assert asked(server._rows, "view=all&count=5&start=1000000")["start"] == 2 * IMAGES


def test_what_was_decided_about_all_is_undone_at_once(server, decided, monkeypatch):
    monkeypatch.setattr("ncclean.reviewing.table._BATCH", 100)
    decided.decide([("u3", 0)], KEEP)
    body = {"decision": DROP, "request": {"view": "all"}}
    answer = asked(server._decide_all, body=body)
    assert answer["changed"] == 2 * IMAGES - 1
    assert answer["decided"] == {DROP: 2 * IMAGES - 1, KEEP: 1}
    undone = asked(server._undo, body={})
    assert undone["decided"] == {KEEP: 1}
    assert (undone["changed"], len(undone["undone"])) == (2 * IMAGES - 1, 200)


@pytest.fixture
def photographs(tmp_path):
    """Pairs of files in folders, in another order than that of their names."""
    path = tmp_path / "photographs.parquet"
    files = ["b/dog 10.jpg", "a/Dog.jpg", "a/cat.jpg", "a/Ma\u0308rz.jpg"]  # as macOS spells it
    rows = [
        {"uid": str(n), "shard": "s", "key": f"k{n}", "row": n, "status": "ok",
         "text": f"picture {n}, 100% it's", "similarity": float(n), "image_path": file}
        for n, file in enumerate(files)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), path)
    opened = ReviewTable.open([str(path)], memory_limit="400MB")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("words", "uids"),
    [
        ("dog", "01"),
        ("a/ DOG", "1"),
        ("cat picture", "2"),
        ("s k3", "3"),
        ("m\u00e4rz", "3"),
        ("100% it's", "0123"),
        ("_", ""),
        ("dog') OR ('a' = 'a", ""),
    ],
)
def test_words_are_searched_in_captions_folders_and_names(photographs, words, uids):
    request = Request("all", search=words)
    matches = asyncio.run(photographs.conditions.matches(photographs.condition(request)))
    view = photographs.view(request, matches)
    assert "".join(row["uid"] for row in photographs.page(view, 0, 9)) == uids


def test_words_and_sql_hold_together_and_names_sort(photographs):
    request = Request("all", search="picture", where="similarity > 0 OR similarity < 0", sort=NAME)
    matches = asyncio.run(photographs.conditions.matches(photographs.condition(request)))
    view = photographs.view(request, matches)
    assert [row["uid"] for row in photographs.page(view, 0, 9)] == ["2", "1", "3"]
