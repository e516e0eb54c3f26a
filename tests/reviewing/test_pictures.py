"""Pictures of a page: read by the places of its rows, before and without the browser asking."""

from __future__ import annotations

import random
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ncclean.base.schema import PLACE_COLUMNS
from ncclean.data.reader import read_samples
from ncclean.data.samples import NO_PLACE
from ncclean.data.shards import resolve_shards
from ncclean.report.thumbnails import LARGE_SIZES, encode_webp
from ncclean.reviewing.pictures import NoPicture, Pictures
from ncclean.reviewing.table import Request, ReviewTable
from tests import hostile, object_store

IMAGES = [hostile.encoded(hostile.photo(seed=n)) for n in range(8)]
SMALL = [encode_webp(image, 60_000, LARGE_SIZES[2:])[0] for image in IMAGES]


def write_tars(folder, tars, samples):
    for number in range(tars):
        members = [
            member
            for n in range(samples)
            for member in hostile.sample(f"{n:05d}", IMAGES[(number + n) % len(IMAGES)])
        ]
        (folder / f"{number:03d}.tar").write_bytes(hostile.tar_bytes(members))


def write_table(path, shards, rows=None, places=True):
    """A score table of the samples of tars, repeated up to so many rows."""
    table = pa.Table.from_pylist(
        [
            {"uid": f"{shard.name}/{sample.key}", "shard": shard.name, "key": sample.key,
             "row": sample.row, "status": sample.status.value, **sample.place._asdict()}
            for shard in shards for sample in read_samples(shard)
        ]
    )  # fmt: skip
    rows = rows or len(table)
    table = table.take(pa.array(random.Random(0).choices(range(len(table)), k=rows)))
    for name, kind in zip(PLACE_COLUMNS, (pa.string(), *4 * [pa.int64()]), strict=True):
        values = table.column(name).cast(kind)
        table = table.drop_columns(name)
        if places:
            table = table.append_column(name, values)
    noise = pa.array([random.Random(n).random() for n in range(rows)], pa.float32())
    pq.write_table(table.append_column("noise_probability", noise), path, row_group_size=100_000)


def expected(row):
    return SMALL[(int(row["shard"]) + int(row["key"])) % len(IMAGES)]


@pytest.mark.parametrize("places", [True, False], ids=["places", "old table"])
def test_every_pair_has_its_own_picture(tmp_path, places):
    write_tars(tmp_path, 3, 20)
    shards = resolve_shards([str(tmp_path)])
    write_table(tmp_path / "s.parquet", shards, places=places)
    table, said = ReviewTable.open([str(tmp_path / "s.parquet")]), []
    pictures = Pictures(shards, table.place_of, said.append)
    view = table.view(Request(view="all"))
    for start in (0, 30):
        rows = table.page(view, start, 30)
        pictures.expect(rows)
        assert [pictures.read(row["shard"], row["key"]) for row in rows] == list(
            map(expected, rows)
        )
    assert len(said) == (0 if places else 1)
    table.close()


def test_a_picture_that_no_page_has_is_looked_up_in_the_table(tmp_path):
    write_tars(tmp_path, 1, 5)
    shards = resolve_shards([str(tmp_path)])
    write_table(tmp_path / "s.parquet", shards)
    table = ReviewTable.open([str(tmp_path / "s.parquet")])
    assert table.place_of("000", "nobody") == NO_PLACE
    assert table.place_of("000", "00003") == list(read_samples(shards[0]))[3].place
    assert Pictures(shards, table.place_of).read("000", "00003") == SMALL[3]
    with pytest.raises(NoPicture, match="no longer where it was scored"):
        Pictures(shards, table.place_of).read("000", "nobody")
    with pytest.raises(NoPicture, match="not among --shards"):
        Pictures(shards, table.place_of).read("001", "00003")
    with pytest.raises(NoPicture, match="without --shards"):
        Pictures(None, table.place_of).read("000", "00003")
    table.close()


def test_the_rows_of_a_repeated_key_show_the_picture_of_its_first_sample(tmp_path):
    members = [*hostile.sample("a", IMAGES[0]), *hostile.sample("a", IMAGES[1])]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(members))
    [shard] = resolve_shards([str(tmp_path)])
    first, second = read_samples(shard)
    rows = [
        {"shard": "s", "key": "a", "status": one.status.value, **one.place._asdict()}
        for one in (second, first)
    ]
    assert rows[0]["status"] == "duplicate_key"
    for page in (rows, rows[::-1]):
        pictures = Pictures([shard], lambda shard, key: first.place)
        pictures.expect(page)
        assert pictures.read("s", "a") == SMALL[0]


def test_a_page_over_a_store_is_a_request_a_tar(tmp_path):
    write_tars(tmp_path, 6, 40)
    with object_store.s3() as store:
        object_store.upload(tmp_path, "s3://corpus/c")
        shards = resolve_shards(["s3://corpus/c"])
        write_table(tmp_path / "s.parquet", shards, rows=5_000)
        table = ReviewTable.open([str(tmp_path / "s.parquet")])
        pictures = Pictures(shards, table.place_of)
        view = table.view(Request(view="all"))
        store.requests.clear()
        store.delay = 0.5
        begin = time.perf_counter()
        rows = table.page(view, 4_000, 60)
        pictures.expect(rows)
        shown = [pictures.read(row["shard"], row["key"]) for row in rows]
        # At the same time: one after the other these would take three seconds.
        assert time.perf_counter() - begin < 2.5
        assert shown == list(map(expected, rows))
        assert len(store.requests) == len({row["shard"] for row in rows}) == 6
        table.close()
