"""Samples of hostile shards, before any image is decoded."""

import gzip
import io
import tarfile

import pytest

from ncclean.data.samples import NO_PLACE, Place, SkipReason
from ncclean.data.shards import resolve_shards
from ncclean.data.tar import TarSamples
from ncclean.errors import ShardError
from tests import hostile


def read(tmp_path, data, caption_key=None):
    """Samples in input order, the reader, and the error it ended with."""
    path = tmp_path / "shard.tar"
    path.write_bytes(data)
    reader = TarSamples(resolve_shards([str(path)])[0], caption_key)
    samples = []
    try:
        for sample in reader:
            samples.append(sample)
    except ShardError as error:
        return sorted(samples, key=lambda s: s.row), reader, error
    return sorted(samples, key=lambda s: s.row), reader, None


@pytest.mark.parametrize("case", hostile.cases(), ids=lambda case: case.name)
def test_one_sample_per_row_in_input_order(tmp_path, case):
    samples, reader, error = read(tmp_path, hostile.tar_bytes(case.members))
    assert error is None
    assert [s.key for s in samples] == [key for key, _ in case.rows]
    assert [s.row for s in samples] == list(range(len(samples))) == list(range(reader.samples))


@pytest.mark.parametrize("case", hostile.cases(), ids=lambda case: case.name)
def test_places_have_the_bytes_of_pictures_and_of_whole_samples(tmp_path, case):
    data = hostile.tar_bytes(case.members)
    samples, _, _ = read(tmp_path, data)
    for sample in samples:
        _, begin, size, sample_begin, sample_size = sample.place
        picture = sample.members.get(sample.picture or "")
        assert (begin is None) == (picture is None or picture.is_sparse)
        if sample.image is not None:
            assert data[begin : begin + size] == sample.image
        assert (sample_begin is None) == (sample_size is None)
        if sample_begin is not None:
            alone = data[sample_begin : sample_begin + sample_size] + bytes(1024)
            with tarfile.open(fileobj=io.BytesIO(alone)) as tar:
                assert len([one for one in tar if one.isfile()]) == len(sample.members)


def test_a_sample_between_whose_members_others_lie_has_no_range_of_its_own(tmp_path):
    names = ["a.jpg", "b.jpg", "a.txt", "b.txt", "c.jpg", "__notes__.txt", "c.txt", "d.jpg"]
    samples, _, _ = read(tmp_path, hostile.tar_bytes([(name, b"data") for name in names]))
    assert {one.key: one.place.sample_offset is not None for one in samples} == {
        "a": False, "b": False, "c": False, "d": True,
    }  # fmt: skip
    assert [one.place.image_offset for one in samples] == [512, 1536, 4608, 7680]


def test_a_sample_that_is_cut_has_its_picture_and_no_range(tmp_path):
    data = hostile.tar_bytes([("a.jpg", b"picture"), ("a.txt", b"caption")])
    (sample,), _, _ = read(tmp_path, data[:1540])
    assert sample.status is SkipReason.SAMPLE_TRUNCATED
    assert sample.place == Place(None, 512, 7)


def test_links_are_said_to_be_links(tmp_path):
    """As `tar` makes of a folder in which equal files were replaced by hard links."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, data in hostile.sample("a", hostile.JPEG):
        (folder / name).write_bytes(data)
        for key in ("b", "c"):
            (folder / f"{key}{name[1:]}").hardlink_to(folder / name)
    (folder / "c.txt").unlink()
    (folder / "c.txt").write_text("another caption")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    samples, reader, error = read(tmp_path, buffer.getvalue())
    assert error is None
    assert [(one.key, one.status, one.error) for one in samples] == [
        ("a", SkipReason.OK, None),
        ("c", SkipReason.IMAGE_MISSING, "the image is a link, which is not followed"),
    ]
    assert (reader.further.images, reader.further.captions) == ({"links": 2}, {"links": 1})


def test_any_number_of_links_takes_no_more_memory(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(1000):
            link = tarfile.TarInfo(f"{number}.jpg")
            link.type, link.linkname = tarfile.LNKTYPE, "a.jpg"
            tar.addfile(link)
    samples, reader, error = read(tmp_path, buffer.getvalue())
    assert (samples, error, reader.further.images) == ([], None, {"links": 1000})
    assert len(reader.linked) < 100


def test_packed_tars_have_no_places(tmp_path):
    data = gzip.compress(hostile.tar_bytes(hostile.sample("a", hostile.JPEG)))
    samples, _, _ = read(tmp_path, data)
    assert [one.place for one in samples] == [NO_PLACE]
    assert samples[0].members["jpg"].size == len(hostile.JPEG)


@pytest.mark.parametrize("shard", hostile.broken_shards(), ids=lambda shard: shard.name)
def test_broken_shards_give_up_what_they_have(tmp_path, shard):
    samples, _, error = read(tmp_path, shard.data)
    assert error is not None
    assert [(s.key, s.status.value) for s in samples] == shard.rows
    assert error.samples == len(shard.rows)


@pytest.mark.parametrize("cut", range(512, 9000, 397))
def test_a_shard_cut_anywhere_is_never_taken_for_whole(tmp_path, cut):
    members = [m for key in "abcdef" for m in hostile.sample(key, hostile.JPEG)]
    samples, _, error = read(tmp_path, hostile.tar_bytes(members)[:cut])
    assert error is not None
    assert [s.key for s in samples] == list("abcdef"[: len(samples)])


@pytest.mark.parametrize("after", [b"\0" * 512, b"\0" * 1024])
def test_members_behind_an_end_of_archive_are_not_lost_in_silence(tmp_path, after):
    """A block of zeros in the middle, as a shifted tar has, or one shard behind another."""
    first, second = (hostile.tar_bytes(hostile.sample(key, hostile.JPEG)) for key in "ab")
    samples, _, error = read(tmp_path, first.rstrip(b"\0") + after * 2 + second)
    assert [s.key for s in samples] == ["a"]
    assert "more data after an end-of-archive marker" in str(error)
    assert read(tmp_path, first + b"\0" * 20_000)[2] is None


def test_interleaved_members_are_joined_and_late_json_reaches_its_sample(tmp_path):
    case = next(c for c in hostile.cases() if c.name == "interleaved")
    samples, reader, _ = read(tmp_path, hostile.tar_bytes(case.members))
    assert [s.caption for s in samples] == ["first", "second", "third"]
    assert reader.late_metadata == {0: {"uid": "uid-of-a", "is_noisy": True}}


def test_incomplete_samples_do_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("ncclean.data.sample_groups._WAITING_SAMPLES", 3)
    members = [(f"{number}.jpg", hostile.JPEG) for number in range(10)]
    late = [("0.txt", b"too late"), ("8.txt", b"in time")]
    samples, _, _ = read(tmp_path, hostile.tar_bytes(members + late))
    statuses = {(sample.row, sample.key): sample.status.value for sample in samples}
    assert statuses.pop((8, "8")) == "ok"
    assert statuses.pop((10, "0")) == "duplicate_key"
    assert set(statuses.values()) == {"caption_missing"}
    assert len(statuses) == 9
