"""Conditions of a person: right whoever else asks, and bounded in time and memory."""

from __future__ import annotations

import asyncio
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.errors import InputError
from ncclean.reviewing.conditions import Condition
from ncclean.reviewing.table import Request, ReviewTable

ENDLESS = "(SELECT count(*) FROM range(1000000000000)) > 3"
PAIRS = 3_000


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    path = tmp_path_factory.mktemp("scores") / "scores.parquet"
    numbers = list(range(PAIRS))
    pq.write_table(
        pa.table(
            {
                "uid": [f"u{number}" for number in numbers],
                "shard": ["a"] * PAIRS,
                "key": [str(number) for number in numbers],
                "row": numbers,
                "status": ["ok"] * PAIRS,
                "similarity": [number / PAIRS for number in numbers],
                "text": [f"ball {number}" for number in numbers],
            }
        ),
        path,
    )
    return str(path)


@pytest.fixture
def table(scores):
    opened = ReviewTable.open([scores], memory_limit="400MB")
    yield opened
    opened.close()


def children():
    """Processes that this one has started and that still run."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


def pairs(table, text, **request):
    matches = asyncio.run(table.conditions.matches(text))
    return table.view(Request("all", **request, where=text), matches).pairs


async def leaves(table, text, seconds=0.8):
    """A reader that waits for so long."""
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(table.conditions.matches(text), seconds)


def test_conditions_at_once_have_their_own_rows(table):
    texts = [f"row < {count}" for count in (1, 20, 300, 2_999)]

    async def ask():
        return await asyncio.gather(*(table.conditions.matches(text) for text in texts * 2))

    matches = asyncio.run(ask())
    assert matches[:4] == matches[4:]  # evaluated once for all that ask
    views = [table.view(Request("all", where=t), m) for t, m in zip(texts, matches, strict=False)]
    assert [view.pairs for view in views] == [1, 20, 300, 2_999]
    histogram = table.histogram(Request("all", score="similarity"), matches[2])
    assert sum(histogram["counts"]) == 300


def test_a_range_of_the_score_narrows_a_condition(table):
    assert pairs(table, "row >= 1500", score="similarity", low=0.4, high=0.75) == 751
    assert pairs(table, "scores.row > (SELECT avg(row) FROM scores)") == 1_500
    assert pairs(table, "nullif(row, 5) >= 0") == PAIRS - 1  # of one it is not known


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nothing = 3", "nothing"),
        ("1) OR (1=1", "the condition"),
        ("row", "the condition"),
        ("rank(row) > 0.5", "rank()"),
        ("count(*) > 3", "aggregate"),
        ("text::INT > 3", "Conversion"),
        ("row > (SELECT max(a) FROM read_csv('/etc/passwd') t(a))", "the condition"),
    ],
)
def test_what_is_no_condition_is_said(table, text, named):
    if text == "row":  # an integer is true or false
        assert pairs(table, text) == PAIRS - 1
        return
    with pytest.raises(InputError) as refused:
        pairs(table, text)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "length(repeat(text, 100000000)) > 5",
        pytest.param("lpad(text, 2000000000, 'x') = text", marks=pytest.mark.slow),
        "repeat('x', 4000000000::BIGINT) = text",
        "len(list_transform(range(1000000000), lambda x: text)) > 3",
    ],
)
def test_memory_is_bounded_whatever_a_function_makes(table, text):
    with pytest.raises(InputError, match="memory"):
        pairs(table, text)
    assert pairs(table, "row < 7") == 7


def test_a_condition_ends_at_the_limit_of_time(scores, table):
    async def ask():
        names = table._scores.names
        condition = Condition((scores,), names, "400MB", ENDLESS)
        await condition.matches(table._scores.work, seconds=1)

    before = children()
    with pytest.raises(InputError, match="more than 1 s"):
        asyncio.run(ask())
    assert children() == before


def test_a_condition_that_failed_is_tried_again(table, monkeypatch):
    async def refuse(*_):
        raise InputError("the machine is busy")

    with monkeypatch.context() as patch:
        patch.setattr(Condition, "matches", refuse)
        with pytest.raises(InputError, match="busy"):
            pairs(table, "row < 7")
    assert pairs(table, "row < 7") == 7


def test_a_condition_is_given_up_with_its_last_reader(table):
    before = children()

    async def ask():
        stays = asyncio.ensure_future(table.conditions.matches(ENDLESS))
        await leaves(table, ENDLESS)
        assert len(children()) == len(before) + 1  # the other one still waits
        stays.cancel()
        for _ in range(100):
            if children() == before:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it still runs")

    asyncio.run(ask())


def test_an_endless_condition_keeps_no_other_from_its_rows(table):
    async def ask():
        endless = asyncio.ensure_future(table.conditions.matches(ENDLESS))
        await asyncio.sleep(0.2)
        matches = await table.conditions.matches("row < 5")
        endless.cancel()
        return matches

    assert table.view(Request("all", where="row < 5"), asyncio.run(ask())).pairs == 5


def test_the_end_of_the_review_ends_conditions_and_queries(table):
    before = children()

    async def ask():
        endless = asyncio.ensure_future(table.conditions.matches(ENDLESS))
        await asyncio.sleep(0.5)
        begin = time.monotonic()
        table.stop()
        with pytest.raises(InputError, match="ended"):
            await endless
        return time.monotonic() - begin

    assert asyncio.run(ask()) < 2
    assert children() == before
    with pytest.raises(InputError, match="ended"):
        table.counts()


def test_rows_of_a_forgotten_condition_are_removed_from_the_disk(table, monkeypatch):
    monkeypatch.setattr("ncclean.reviewing.conditions._KEPT", 2)
    for count in range(1, 5):
        assert pairs(table, f"row < {count}") == count
    assert len(list(table._scores.work.glob("matches_*"))) == 2


def test_where_of_the_command_line_narrows_all_views(scores):
    table = ReviewTable.open([scores], where="row < 40", memory_limit="400MB")
    try:
        assert table.counts()["all"] == 40
        assert pairs(table, "row >= 30") == 10
    finally:
        table.close()
    with pytest.raises(InputError, match="memory"):
        ReviewTable.open(
            [scores], where="length(repeat(text, 100000000)) > 5", memory_limit="400MB"
        )


def test_a_view_that_is_read_outlives_its_place_among_the_open_ones(table):
    first = table.view(Request("all"))
    for low in range(12):
        table.view(Request("all", score="similarity", low=low / 20))
    assert [row["row"] for row in table.page(first, 0, 3)] == [0, 1, 2]
    orders = "SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE 'order_%'"
    assert table._run(orders) == [(9,)]  # the first, and the eight that are open
    del first
    assert table._run(orders) == [(8,)]
