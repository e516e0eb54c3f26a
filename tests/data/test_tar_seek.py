"""Images of a tar by a few reads: where keys are in order, and never another sample's."""

from __future__ import annotations

import io
import random
import tarfile

import pytest

from ncclean.data.tar_seek import Member, NotInOrder, TarSeek, Window


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


class Reads:
    """Reads the bytes of a tar, and counts."""

    def __init__(self, data):
        self.data, self.count, self.bytes = data, 0, 0

    def __call__(self, begin, end):
        assert 0 <= begin <= end <= len(self.data)
        self.count, self.bytes = self.count + 1, self.bytes + end - begin
        return self.data[begin:end]


def samples(count, size, name="{:09d}"):
    draw = random.Random(count)
    return [(name.format(n), draw.randbytes(draw.randrange(size // 2, size))) for n in range(count)]


def content(data, member):
    return data[member.content : member.content + member.size]


@pytest.mark.parametrize("endings", [("jpg", "json", "txt"), ("txt", "png"), ("jpg",)])
@pytest.mark.parametrize(
    ("count", "size", "name"),
    [
        (4000, 10_000, "{:09d}"),
        (4000, 10_000, "{}"),  # numbers without zeros in front
        (3000, 10_000, "photos/{:06x}"),
        (40, 900_000, "{:05d}"),
        (3, 500, "{:05d}"),
    ],
)
def test_every_image_is_found_by_few_reads(count, size, name, endings):
    wanted = samples(count, size, name)
    data = tar(wanted, endings)
    reads = Reads(data)
    seek = TarSeek(len(data), reads)
    asked = [*wanted[:5], *wanted[-5:], *random.Random(0).sample(wanted, min(30, count))]
    for key, image in asked:
        member, read = seek.find(key)
        assert content(data, member) == image
        assert read in (None, image)
    assert reads.count <= 2 + (3 if name == "{:09d}" else 7) * len(asked)
    if name == "{:09d}":
        assert reads.bytes < len(data) / 2


def test_a_jump_in_the_numbers_costs_a_few_more_reads():
    wanted = [(f"{n if n < 1500 else n * n * 1000}", image) for n, image in
              enumerate(image for _, image in samples(3000, 8_000))]  # fmt: skip
    data = tar(wanted)
    seek = TarSeek(len(data), Reads(data))
    for key, image in random.Random(0).sample(wanted, 40):
        assert content(data, seek.find(key)[0]) == image


@pytest.mark.parametrize("kind", ["shuffled", "long names", "gnu", "zeros", "empty"])
def test_what_is_not_in_order_is_left_to_a_walk(kind):
    wanted = samples(2000, 8_000)
    if kind == "shuffled":
        random.Random(1).shuffle(wanted)
    if kind in ("long names", "gnu"):
        wanted = [(f"{'x' * 120}{key}", image) for key, image in wanted]
    data = tar(wanted, format=tarfile.GNU_FORMAT if kind == "gnu" else tarfile.PAX_FORMAT)
    data = {"zeros": bytes(1 << 20), "empty": b""}.get(kind, data)
    reads = Reads(data)
    seek = TarSeek(len(data), reads)
    right = 0
    for key, image in wanted[500:520]:
        try:
            right += content(data, seek.find(key)[0]) == image
        except NotInOrder:
            continue
        assert kind == "shuffled"  # by chance one may be met, and then it is the right one
    assert right < 5


def test_a_key_that_is_not_there_is_not_found():
    wanted = [(f"{n:09d}", image) for n, (_, image) in enumerate(samples(2000, 8_000)) if n % 3]
    data = tar(wanted)
    seek = TarSeek(len(data), Reads(data))
    for number in (0, 300, 999, 5000):
        with pytest.raises(NotInOrder):
            seek.find(f"{number:09d}")


def test_a_tar_inside_an_image_does_not_lend_its_samples():
    """An image that is a tar itself shows headers in the middle of a window."""
    wanted = samples(400, 40_000)
    false = tar([("000000350", b"another picture" * 100)] * 20)
    wanted[200] = (wanted[200][0], bytes(100_000) + false + bytes(100_000))
    data = tar(wanted)
    for key, image in wanted[190:210] + wanted[345:355]:
        try:
            member, _ = TarSeek(len(data), Reads(data)).find(key)
        except NotInOrder:
            continue
        assert content(data, member) == image


def test_a_depth_map_is_no_picture_where_the_photograph_may_lie_behind():
    shown = Window(0, tar([]))
    shown.members = [Member("a", "depth.png", 0, 512, 9), Member("a", "txt", 1024, 1536, 9)]
    assert shown.image("a", None) is None
    assert shown.image("a", "depth.png") == shown.members[0]
    shown.members.append(Member("a", "jpg", 2048, 2560, 9))
    assert shown.image("a", None) == shown.members[2]


def test_of_two_images_of_a_sample_the_first_is_taken():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for number in range(2000):
            for ending, data in (("png", b"first"), ("jpg", b"other"), ("txt", b"")):
                member = tarfile.TarInfo(f"{number:09d}.{ending}")
                padded = data + bytes(5000)
                member.size = len(padded)
                out.addfile(member, io.BytesIO(padded))
    data = buffer.getvalue()
    seek = TarSeek(len(data), Reads(data))
    for number in range(0, 2000, 7):
        assert content(data, seek.find(f"{number:09d}")[0]).startswith(b"first")


@pytest.mark.parametrize("after", range(0, 120_000, 20_480))
def test_a_sample_that_begins_before_a_window_is_read_from_its_beginning(after):
    """The last bytes of a tar, read first, may begin between the two images of a sample."""
    buffer = io.BytesIO()
    images = {}
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for number in range(20):
            for ending in ("png", "jpg"):
                image = f"{ending} of {number}".encode().ljust(40_000)
                member = tarfile.TarInfo(f"{number:09d}.{ending}")
                member.size = len(image)
                out.addfile(member, io.BytesIO(image))
                images.setdefault(f"{number:09d}", image)
    data = buffer.getvalue()
    data += bytes(after)  # what follows the end moves the last window
    for key, image in images.items():
        seek = TarSeek(len(data), Reads(data))
        assert content(data, seek.find(key)[0]) == image
