"""Byte ranges of samples: those of the samples that scoring reads, for ordinary and odd tars."""

import contextlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.data.samples import SkipReason
from ncclean.data.shards import resolve_shards
from ncclean.data.tar import LocatedSamples, TarSamples
from ncclean.data.tar_ranges import read_content
from ncclean.errors import ShardError
from tests import hostile

NAMES = st.sampled_from(
    ["a.jpg", "a.txt", "a.JSON", "b.jpg", "b.txt", "c/d.jpg", "c/d.txt", "a.b.txt", "é.jpg",
     "é.txt", "x" * 99 + ".txt", "x" * 100, "y" * 160 + ".jpg", "plain", "c/.hidden", "a.cls",
     "__a__.json", "c.d/a.jpg", "c.jpg", "a.depth.png", "a.e.jpg", "a.e.txt", "a.e.json", "a.png",
     "f.1.jpg", "f.1.txt", "f.2.jpg", "f.2.txt", "f.2.x.jpg", "f.2.x.txt"]
)  # fmt: skip


def as_scoring_reads(path: Path, reader=None) -> dict[str, dict[str, tuple[int, int]]]:
    """Whole members of the first sample of each key, with a json that came late."""
    reader = reader or TarSamples(resolve_shards([str(path)])[0])
    samples = []
    with contextlib.suppress(ShardError):
        samples += reader
    located = {}
    for sample in sorted(samples, key=lambda sample: sample.row):
        if not sample.members or sample.status is SkipReason.DUPLICATE_KEY:
            continue
        places = {name: (member.begin, member.end) for name, member in sample.members.items()}
        late = reader.late_members.get(sample.row)
        if late is not None:
            places.setdefault("json", (late.begin, late.end))
        located[sample.key] = places
    return located


def locate_samples(path: Path, read=()) -> dict[str, dict[str, tuple[int, int]]]:
    """The places of members of the first sample of each key, a late json among them."""
    return as_scoring_reads(path, LocatedSamples(resolve_shards([str(path)])[0], read=read))


def assert_located_as_read(path: Path) -> None:
    expected = as_scoring_reads(path)
    located = locate_samples(path)
    assert located == expected
    assert list(located) == list(expected)
    assert [list(members) for members in located.values()] == [
        list(members) for members in expected.values()
    ]
    for key in expected:  # whatever is read of one sample, all are what they are
        assert locate_samples(path, {key}) == expected


def write(path: Path, names, format: int) -> dict[str, list[bytes]]:
    """A tar of members with these names; returns the contents by name."""
    contents: dict[str, list[bytes]] = {}
    with tarfile.open(path, "w", format=format) as tar:
        for number, name in enumerate(names):
            data = f"{number} {name}".encode() * (1 + 97 * (number % 7))
            if name.lower().endswith("json") and number % 2:
                data = json.dumps({"caption": f"{number}"}).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            with contextlib.suppress(ValueError):  # too long for USTAR
                tar.addfile(info, io.BytesIO(data))
                contents.setdefault(name, []).append(data)
    return contents


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(NAMES, max_size=12),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_samples_are_those_that_scoring_reads(tmp_path_factory, names, format):
    path = tmp_path_factory.mktemp("index") / "shard.tar"
    contents = write(path, names, format)
    assert_located_as_read(path)
    data = path.read_bytes()
    for key, members in locate_samples(path).items():
        for extension, (begin, end) in members.items():
            same = [n for n in contents if n.lower() == f"{key}.{extension}".lower()]
            assert read_content(data[begin:end]) in [one for n in same for one in contents[n]]


def test_hostile_shards(tmp_path):
    readable, broken = hostile.write_hostile(tmp_path)
    for shard in [*readable, *broken]:
        path = tmp_path / f"{shard.name}.tar"
        if shard.name in ("zero_bytes", "not_a_tar", "short"):
            with pytest.raises(ShardError):
                list(LocatedSamples(resolve_shards([str(path)])[0]))
        else:
            assert_located_as_read(path)


def test_a_second_caption_before_the_image_starts_another_sample(tmp_path):
    """Scoring pairs the image with the second caption; so must an export."""
    members = [("a.txt", b"one"), ("a.txt", b"two"), ("a.jpg", hostile.JPEG)]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(members))
    (members,) = locate_samples(tmp_path / "s.tar").values()
    begin, end = members["txt"]
    assert read_content((tmp_path / "s.tar").read_bytes()[begin:end]) == b"two"
    assert_located_as_read(tmp_path / "s.tar")


def test_a_sparse_file_ends_where_its_data_does(tmp_path):
    (tmp_path / "in").mkdir()
    with open(tmp_path / "in" / "a.cls", "wb") as file:
        file.truncate(1 << 20)
    for extension, data in (("jpg", hostile.JPEG), ("txt", b"one")):
        (tmp_path / "in" / f"a.{extension}").write_bytes(data)
    import subprocess

    command = ["tar", "-cSf", "s.tar", "-C", "in", "a.cls", "a.jpg", "a.txt"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert_located_as_read(tmp_path / "s.tar")
    assert [*locate_samples(tmp_path / "s.tar")["a"]] == ["cls", "jpg", "txt"]


@pytest.mark.parametrize(
    ("cut", "whole_of_b"), [(0, ["jpg", "txt"]), (1, ["jpg"]), (600, ["jpg"]), (2000, [])]
)
def test_a_tar_that_breaks_off_gives_what_came_before(tmp_path, cut, whole_of_b):
    """`cut` bytes before the end of the last content, its padding not counted."""
    path = tmp_path / "s.tar"
    whole = hostile.tar_bytes(
        [*hostile.sample("a", hostile.JPEG), *hostile.sample("b", hostile.JPEG, b"a caption")]
    )
    path.write_bytes(whole[: whole.rindex(b"a caption") + len(b"a caption") - cut])
    samples = {key: list(members) for key, members in locate_samples(path).items()}
    assert samples.get("a") == ["jpg", "txt"]
    assert samples.get("b", []) == whole_of_b
    assert_located_as_read(path)
