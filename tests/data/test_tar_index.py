"""Byte ranges of samples, against tarfile's own reading, for ordinary and odd tars."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclean.data.tar_index import sample_spans
from ncclean.errors import ShardError
from tests import hostile

NAMES = st.sampled_from(
    ["a.jpg", "a.txt", "a.JSON", "b.jpg", "b.txt", "c/d.jpg", "c/d.txt", "a.b.txt", "é.jpg",
     "x" * 99 + ".txt", "x" * 100, "y" * 160 + ".jpg", "plain", "c/.hidden"]
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    names=st.lists(NAMES, max_size=12),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_contents_are_those_of_the_samples(tmp_path_factory, names, format):
    path = tmp_path_factory.mktemp("index") / "shard.tar"
    expected: dict[str, dict[str, bytes]] = {}
    closed = set()
    with tarfile.open(path, "w", format=format) as tar:
        for number, name in enumerate(names):
            data = f"{number} {name}".encode() * (1 + 97 * (number % 7))
            info = tarfile.TarInfo(name)
            info.size = len(data)
            try:
                tar.addfile(info, io.BytesIO(data))
            except ValueError:  # too long for USTAR
                continue
            from ncclean.data.names import split_name

            key, extension = split_name(name)
            if key is None or key in closed:
                continue
            members = expected.setdefault(key, {})
            if extension.lower() in members:
                closed.add(key)
            else:
                members[extension.lower()] = data
    content = path.read_bytes()
    found = {
        span.key: {m.extension: content[m.data : m.data + m.size] for m in span.members}
        for span in sample_spans(path)
    }
    assert found == expected
    assert list(found) == list(expected)
    for span in sample_spans(path):
        for member in span.members:
            piece = io.BytesIO(content[member.start : member.end] + bytes(1024))
            with tarfile.open(fileobj=piece) as tar:  # headers and padding are copied with it
                assert tar.extractfile(tar.next()).read() == found[span.key][member.extension]


def test_only_what_is_asked_for(tmp_path):
    members = [
        *hostile.sample("a", hostile.JPEG),
        *hostile.sample("b", hostile.JPEG),
        *hostile.sample("c", hostile.JPEG),
    ]
    (tmp_path / "s.tar").write_bytes(hostile.tar_bytes(members))
    assert [span.key for span in sample_spans(tmp_path / "s.tar", {"b", "nosuch"})] == ["b"]


@pytest.mark.parametrize("cut", [1, 600, 2000])
def test_a_tar_that_breaks_off_gives_what_came_before(tmp_path, cut):
    whole = hostile.tar_bytes(
        [*hostile.sample("a", hostile.JPEG), *hostile.sample("b", hostile.JPEG)]
    )
    (tmp_path / "whole.tar").write_bytes(whole)
    ends = [m.data + m.size for s in sample_spans(tmp_path / "whole.tar") for m in s.members]
    (tmp_path / "cut.tar").write_bytes(whole[: max(ends) - cut])
    found = [m.data + m.size for s in sample_spans(tmp_path / "cut.tar") for m in s.members]
    assert found == [end for end in ends if end <= max(ends) - cut]


@pytest.mark.parametrize("data", [b"", b"<html>not a tar</html>" * 100])
def test_what_is_no_tar(tmp_path, data):
    (tmp_path / "s.tar").write_bytes(data)
    with pytest.raises(ShardError):
        sample_spans(tmp_path / "s.tar")
