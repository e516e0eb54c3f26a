"""Images by their places: the bytes that scoring saw, by few reads, and never another sample's."""

from __future__ import annotations

import contextlib
import gzip
import io
import random
import tarfile
import threading

import pytest

from ncclean.base import stores
from ncclean.data import fetch
from ncclean.data.fetch import ImageFetcher
from ncclean.data.reader import read_samples
from ncclean.data.samples import NO_PLACE, Place
from ncclean.data.shards import resolve_shards
from ncclean.data.sources import resolve_sources
from ncclean.errors import ShardError
from tests import hostile, object_store
from tests.data.image_layouts import LAYOUTS


def tar(samples, endings=("jpg", "json", "txt"), format=tarfile.PAX_FORMAT):
    """The bytes of a tar; the first ending of each sample is its image."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as out:
        for key, image in samples:
            for ending in endings:
                data = image if ending in ("jpg", "png") else f"{ending} of {key}".encode()
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def images(count, size=4000, name="{:09d}"):
    draw = random.Random(count)
    return [(name.format(n), draw.randbytes(draw.randrange(size // 2, size))) for n in range(count)]


def written(path, data):
    path.write_bytes(data)
    [shard] = resolve_shards([str(path)])
    return shard


def places(shard):
    """What a score table says of the first sample of each key."""
    there = {}
    with contextlib.suppress(ShardError):
        for sample in read_samples(shard):
            there.setdefault(sample.key, sample.place)
    return there


def without(there):
    """The same as a table of 0.3 says it."""
    return dict.fromkeys(there, NO_PLACE)


@pytest.fixture
def walks(monkeypatch):
    """The shards that were read from the front."""
    shards = []
    read = fetch.read_samples
    monkeypatch.setattr(
        fetch, "read_samples", lambda shard, **how: shards.append(shard.name) or read(shard, **how)
    )
    return shards


@pytest.fixture
def requests(monkeypatch):
    """The ranges of each request."""
    asked = []
    read = stores.read_ranges

    def counting(path, ranges):
        asked.append(ranges)
        return read(path, ranges)

    monkeypatch.setattr(stores, "read_ranges", counting)
    return asked


@pytest.mark.parametrize("case", hostile.cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("has_places", [True, False], ids=["places", "old table"])
def test_images_are_those_that_scoring_reads(tmp_path, case, is_packed, has_places):
    data = hostile.tar_bytes(case.members)
    shard = written(tmp_path / "s.tar", gzip.compress(data) if is_packed else data)
    there = places(shard) if has_places else without(places(shard))
    expected = {s.key: s.image for s in read_samples(shard) if s.image is not None}
    fetched = dict(ImageFetcher().fetch(shard, there))
    assert {key: fetched[key] for key in expected} == expected
    for key in list(expected)[:3]:
        one = {key: there[key], "not there": NO_PLACE}
        assert dict(ImageFetcher().fetch(shard, one)) == {key: expected[key]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path, layout, walks):
    pairs = [(f"{n:05d}", b"image %d" % n, f"caption {n}") for n in range(9)]
    for shard in resolve_sources([str(LAYOUTS[layout](pairs, tmp_path / "source"))]):
        there = places(shard)
        expected = {sample.key: sample.image for sample in read_samples(shard)}
        walks.clear()
        assert dict(ImageFetcher().fetch(shard, there)) == expected
        assert bool(walks) == (NO_PLACE in there.values())
        assert dict(ImageFetcher().fetch(shard, without(there))) == expected


@pytest.mark.parametrize("endings", [("jpg", "json", "txt"), ("txt", "png"), ("jpg",)])
@pytest.mark.parametrize(
    "name", ["{:09d}", "photos/{}", "{:0120d}", "東京/{:05d}", "é" * 90 + "{}"]
)
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_place_is_one_read(tmp_path, endings, name, form, walks, requests):
    expected = images(40, name=name)
    shard = written(tmp_path / "s.tar", tar(expected, endings, form))
    there = places(shard)
    walks.clear()
    for key, image in expected[::7]:
        assert list(ImageFetcher().fetch(shard, {key: there[key]})) == [(key, image)]
    assert not walks
    assert [len(ranges) for ranges in requests] == [1] * 6


def test_neighbours_are_one_range_and_others_are_read_at_the_same_time(
    tmp_path, monkeypatch, requests
):
    monkeypatch.setattr(fetch, "_GAP", 20_000)
    expected = images(500)
    shard = written(tmp_path / "s.tar", tar(expected))
    there = places(shard)
    chosen = [*range(10, 20), 100, *range(300, 302), 499]
    wanted = {expected[n][0]: there[expected[n][0]] for n in random.Random(0).sample(chosen, 14)}
    fetched = dict(ImageFetcher().fetch(shard, wanted))
    assert fetched == {expected[n][0]: expected[n][1] for n in chosen}
    assert [len(ranges) for ranges in requests] == [4]


def test_what_is_held_at_once_is_bounded(tmp_path, monkeypatch, requests):
    monkeypatch.setattr(fetch, "_LARGEST_RUN", 20_000)
    monkeypatch.setattr(fetch, "_RUNS_AT_ONCE", 4)
    expected = images(60)
    shard = written(tmp_path / "s.tar", tar(expected))
    assert dict(ImageFetcher().fetch(shard, places(shard))) == dict(expected)
    assert all(end - begin <= 20_000 for ranges in requests for begin, end in ranges)
    assert max(map(len, requests)) <= 4


CHANGES = {
    "shuffled": lambda pairs: random.Random(1).sample(pairs, len(pairs)),
    "renamed": lambda pairs: [(f"1{key[1:]}", image) for key, image in pairs],
    "rotated": lambda pairs: [
        (key, image) for (key, _), (_, image) in zip(pairs, pairs[1:] + pairs[:1], strict=True)
    ],
    "shorter": lambda pairs: pairs[:3],
    "longer": lambda pairs: [("a", b"new" * 999), *pairs],
    "other images": lambda pairs: [(key, image[:-9]) for key, image in pairs],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("equal", [False, True], ids=["any sizes", "equal sizes"])
def test_a_tar_that_has_changed_never_lends_another_image(tmp_path, change, is_packed, equal):
    pairs = [(key, image[:2000] if equal else image) for key, image in images(12)]
    there = places(written(tmp_path / "s.tar", tar(pairs)))
    after = CHANGES[change](pairs)
    data = tar(after)
    shard = written(tmp_path / "s.tar", gzip.compress(data) if is_packed else data)
    said = []
    fetched = dict(ImageFetcher(said.append).fetch(shard, there))
    assert fetched == {key: image for key, image in after if key in there}
    moved = {key for key, place in places(shard).items() if there.get(key, place) != place}
    assert [shard.url in text for text in said] == [True] * bool(moved)


def test_a_tar_without_places_is_read_once(tmp_path, walks):
    expected = images(500)
    random.Random(1).shuffle(expected)
    shard = written(tmp_path / "s.tar", tar(expected))
    said, results = [], {}
    fetcher = ImageFetcher(said.append, keeps_places=True)

    def read(pair):
        results.update(fetcher.fetch(shard, {pair[0]: NO_PLACE, "nobody": NO_PLACE}))

    threads = [threading.Thread(target=read, args=[pair]) for pair in expected[::50]]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == dict(expected[::50])
    assert walks == ["s"]
    assert len(said) == 1
    assert "before 0.4" in said[0]
    # What is kept is not taken for right, either.
    after = list(reversed(expected))
    shard = written(tmp_path / "s.tar", tar(after))
    assert dict(fetcher.fetch(shard, without(dict(expected)))) == dict(expected)
    assert walks == ["s", "s"]


def test_a_table_with_places_needs_no_walk_for_what_has_no_picture(tmp_path, walks):
    members = [("a.jpg", b"a"), ("a.txt", b"a"), ("b.txt", b"b"), ("c.heic", b"c"), ("c.txt", b"")]
    shard = written(tmp_path / "s.tar", hostile.tar_bytes(members))
    there = places(shard)
    walks.clear()
    said = []
    assert dict(ImageFetcher(said.append).fetch(shard, there)) == {"a": b"a"}
    assert not walks + said


@pytest.mark.parametrize("has_places", [True, False])
def test_the_first_image_of_a_key_counts_and_a_large_one_is_told(tmp_path, monkeypatch, has_places):
    pairs = [("b", b"first" * 9), ("a", b"second" * 9), ("b", b"third" * 9), ("c", b"l" * 9000)]
    monkeypatch.setattr(fetch, "LARGEST_IMAGE", 5000)
    shard = written(tmp_path / "a.tar", tar(pairs))
    there = places(shard) if has_places else without(places(shard))
    fetched = dict(ImageFetcher().fetch(shard, there))
    assert fetched == {"b": b"first" * 9, "a": b"second" * 9, "c": None}


def test_a_broken_tar_gives_what_comes_before_and_raises(tmp_path):
    for broken in hostile.broken_shards():
        shard = written(tmp_path / f"{broken.name}.tar", broken.data)
        there = places(shard)
        readable = [key for key, status in broken.rows if status == "ok"]
        for places_ in (there, without(there)):
            wanted = {key: places_[key] for key in readable}
            assert [key for key, _ in ImageFetcher().fetch(shard, wanted)] == readable
        if broken.name not in ("cut_between", "garbage_inside"):
            with pytest.raises(ShardError):
                list(ImageFetcher().fetch(shard, {**there, "z": NO_PLACE}))


def test_a_shard_is_read_no_further_than_the_last_chosen(tmp_path):
    whole = hostile.tar_bytes([*hostile.sample("a", hostile.JPEG), *hostile.sample("b", b"x")])
    shard = written(tmp_path / "s.tar", whole[: whole.index(b"b.jpg")] + b"\x55" * 512)
    assert dict(ImageFetcher().fetch(shard, {"a": NO_PLACE})) == {"a": hostile.JPEG}


def test_places_of_another_corpus_are_refused(tmp_path):
    shard = written(tmp_path / "s.tar", tar(images(3)))
    for place in (
        Place(None, 0, 5),
        Place(None, -1, 5),
        Place(None, 512, -1),
        Place(None, 1 << 60, 1),
        Place(None, 512, 1 << 60),
        Place("/etc/passwd"),
    ):
        assert dict(ImageFetcher().fetch(shard, {"000000001": place})) == dict(images(3)[1:2])


@pytest.mark.parametrize(
    "place", [("s", "1", 2, 3, 4), (7, 1, 2, 3, 4), (None, 512.0, 5, None, None), ([], *4 * [None])]
)
def test_columns_of_other_types_are_no_places(place):
    assert Place.of(*place) == NO_PLACE
    assert Place.of("a.jpg", 1, None, 3, 4) == Place("a.jpg", 1, None, 3, 4)


def test_files_that_are_gone_or_outside_are_not_shown(tmp_path, monkeypatch):
    source = LAYOUTS["files"]([("a", b"a", "a"), ("b", b"b", "b")], tmp_path / "source")
    [shard] = resolve_sources([str(source)])
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    there = places(shard)
    outside = dict.fromkeys(there, Place("../../secret.jpg"))
    assert b"secret" not in dict(ImageFetcher().fetch(shard, outside)).values()
    for file in source.rglob("a.jpg"):
        file.unlink()
    monkeypatch.setattr("ncclean.data.fetch.read_samples", pytest.fail)  # no use to look for it
    assert [*dict(ImageFetcher().fetch(shard, there)).values()] == [b"b"]


@pytest.mark.parametrize("layout", ["files", "imagefolder", "open_clip"])
def test_another_image_in_the_file_is_said(layout, tmp_path):
    table = LAYOUTS[layout]([("a", b"a", "a"), ("b", b"b", "b")], tmp_path / "source")
    [shard] = resolve_sources([str(table)])
    there, said = places(shard), []
    assert {place.image_size for place in there.values()} == {1}
    assert dict(ImageFetcher(said.append).fetch(shard, there))
    assert not said
    for file in (tmp_path / "source").rglob("*.jpg"):
        file.write_bytes(b"another")
    assert {*dict(ImageFetcher(said.append).fetch(shard, there)).values()} == {b"another"}
    (text,) = said
    assert "changed since" in text


def test_a_store_is_asked_for_a_page_at_once(tmp_path):
    expected = images(300, 20_000)
    (tmp_path / "s.tar").write_bytes(tar(expected))
    with object_store.s3() as store:
        object_store.upload(tmp_path, "s3://corpus/c")
        [shard] = resolve_shards(["s3://corpus/c/s.tar"])
        there = places(shard)
        store.requests.clear()
        chosen = dict(random.Random(0).sample(expected, 24))
        fetched = dict(ImageFetcher().fetch(shard, {key: there[key] for key in chosen}))
        assert fetched == chosen
        assert len(store.requests) <= 24
        assert {method for method, _ in store.requests} == {"GET"}
        store.forbids = lambda method, path: True
        with pytest.raises(ShardError, match="Forbidden"):
            dict(ImageFetcher().fetch(shard, there))
