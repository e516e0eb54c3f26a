"""Shards that mean harm: a header, a compression or a name that announces more than there is.

Each names what must come of it. `tests/benchmarks/reliability_attacks.py` runs whole commands on
them; add others to `ATTACKS`. Those on tables: `table_attacks.py`.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import itertools
import json
import lzma
import os
import socket
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests import hostile

_BLOCK = 512
_GOOD = 4  # pairs beside what an attack adds


@dataclass(frozen=True)
class Attack:
    """`write` fills a folder. `statuses` counts the rows that `score` must write by status.

    `failed` are the shards that are reported, each by its name; empty statuses stand for a source
    that is refused with a sentence which contains `says`. `source` is a file of the folder to name
    in its place.
    """

    name: str
    write: Callable[[Path], None]
    statuses: dict[str, int]
    failed: tuple[str, ...] = ()
    says: str = ""
    source: str = ""


def good(prefix: str = "good", count: int = _GOOD) -> list[hostile.Member]:
    """Members of ordinary pairs."""
    pairs = (
        hostile.sample(f"{prefix}{number}", hostile.JPEG, f"photo number {number}".encode())
        for number in range(count)
    )
    return [member for pair in pairs for member in pair]


def packed(members: Iterable[hostile.Member]) -> bytes:
    """Members of a tar, without its end."""
    return b"".join(
        header(name, len(data)) + data + bytes(-len(data) % _BLOCK) for name, data in members
    )


def header(
    name: str,
    size: int,
    kind: bytes = tarfile.REGTYPE,
    edit: Callable[[bytearray], None] | None = None,
) -> bytes:
    """One header block, changed by `edit`, with the checksum that it then has."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[-_BLOCK:])
    if edit is not None:
        edit(block)
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


END = bytes(2 * _BLOCK)


def tar(
    *pieces: bytes | Callable[[], bytes], name: str = "a.tar", end: bytes = END
) -> Callable[[Path], None]:
    """Writes a tar of pieces between ordinary pairs; a function makes one when it is written."""

    def write(folder: Path) -> None:
        middle = len(good()) // 2
        before, after = packed(good()[:middle]), packed(good()[middle:])
        _beside(folder)
        made = b"".join(piece() if callable(piece) else piece for piece in pieces)
        (folder / name).write_bytes(before + made + after + end)

    return write


def _beside(folder: Path) -> None:
    """An ordinary shard, which must not suffer."""
    (folder / "z.tar").write_bytes(packed(good("other")) + END)


def _gnu_sparse(name: str, real: int) -> bytes:
    def edit(block: bytearray) -> None:
        block[386:410] = b"00000000000\0" + b"00000000005\0"
        block[483:495] = b"\x80" + real.to_bytes(11, "big")

    return header(name, 5, tarfile.GNUTYPE_SPARSE, edit) + b"words" + bytes(_BLOCK - 5)


def pax(records: dict[str, str]) -> bytes:
    lines = b""
    for key, value in records.items():
        line = f" {key}={value}\n".encode()
        length = len(line)
        while len(str(length)) + len(line) != length:
            length = len(str(length)) + len(line)
        lines += str(length).encode() + line
    padding = bytes(-len(lines) % _BLOCK)
    return header("pax", len(lines), tarfile.XHDTYPE) + lines + padding


def _pax_sparse(name: str) -> bytes:
    size = str(1 << 40)
    fields = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name,
              "GNU.sparse.realsize": size}  # fmt: skip
    content = f"1\n{(1 << 40) - 5}\n5\n".encode().ljust(_BLOCK, b"\0") + b"words"
    return pax(fields) + packed([("GNUSparseFile.0/x", content)])


def _base256(size: int) -> Callable[[bytearray], None]:
    def edit(block: bytearray) -> None:
        block[124:136] = (size % (1 << 96) | (0x80 << 88 if size >= 0 else 0)).to_bytes(12, "big")

    return edit


def _octal(text: bytes) -> Callable[[bytearray], None]:
    def edit(block: bytearray) -> None:
        block[124:136] = text

    return edit


def _holes(folder: Path) -> None:
    tar()(folder)
    os.truncate(folder / "a.tar", 20 << 30)


def _mp4(folder: Path) -> None:
    """A film of 2.5 GB beside an image, which nobody asks for."""
    _beside(folder)
    size = 5 << 29
    with open(folder / "a.tar", "wb") as file:
        file.write(packed(good()) + header("good9.mp4", size))
        file.seek(size, 1)
        file.write(packed(hostile.sample("last", hostile.JPEG)) + END)


def _large_image(folder: Path) -> None:
    _beside(folder)
    size = 3 << 30
    with open(folder / "a.tar", "wb") as file:
        file.write(packed(good()) + header("large.jpg", size))
        file.seek(size, 1)
        file.write(packed([("large.txt", b"large")]) + END)


def _compressed(
    pack: Callable[[bytes], bytes], data: Callable[[], Iterable[bytes]], name: str
) -> Callable[[Path], None]:
    """Writes pieces that are packed one by one, which all three formats allow: equal ones once."""

    def write(folder: Path) -> None:
        _beside(folder)
        packed_once = functools.cache(pack)
        with open(folder / name, "wb") as file:
            for piece in data():
                file.write(packed_once(piece))

    return write


def _zeros() -> Iterable[bytes]:
    yield packed(good()) + END
    yield from _gigabytes_of_zeros()


def _film_of_zeros() -> Iterable[bytes]:
    yield packed(good()) + header("good9.mp4", 2 << 30)
    yield from _gigabytes_of_zeros()
    yield END


def _gigabytes_of_zeros() -> Iterable[bytes]:
    return itertools.repeat(bytes(16 << 20), 128)


def _captions(count: int, samples: int) -> Iterable[bytes]:
    """In one piece: how much a shard's captions may be depends on its size."""
    captions = json.dumps({"caption": ["a"] * count}).encode()
    yield (
        b"".join(
            packed([(f"{number}.jpg", hostile.JPEG), (f"{number}.json", captions)])
            for number in range(samples)
        )
        + END
    )


def _jsons() -> Iterable[bytes]:
    """Samples without an image, whose fields take thirty times their bytes."""
    fields = b'{"x": [' + b",".join([b"[]"] * 300_000) + b"]}"
    for number in range(60):
        yield packed([(f"{number}.json", fields)])
    yield packed(good()) + END


def _pixels(folder: Path) -> None:
    """Images as large as is allowed, as many as are decoded at once."""
    folder.mkdir(exist_ok=True)
    _beside(folder)
    buffer = io.BytesIO()
    Image.new("RGB", (9400, 9400)).save(buffer, "PNG", compress_level=1)
    data = buffer.getvalue()
    members = [member for n in range(6) for member in hostile.sample(str(n), data, ext="png")]
    (folder / "a.tar").write_bytes(packed(members) + END)


def _fifo(folder: Path) -> None:
    _beside(folder)
    os.mkfifo(folder / "b.tar")


def _socket(folder: Path) -> None:
    _beside(folder)
    here = os.getcwd()
    os.chdir(folder)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("b.tar")
    finally:
        os.chdir(here)


def _device(folder: Path) -> None:
    _beside(folder)
    (folder / "b.tar").symlink_to("/dev/zero")


def _folder_called_tar(folder: Path) -> None:
    _beside(folder)
    (folder / "b.tar").mkdir()


def _files_of_no_kind(folder: Path) -> None:
    """A folder of images in which some are pipes, devices, links to themselves."""
    (folder / "ok.jpg").write_bytes(hostile.JPEG)
    (folder / "ok.txt").write_bytes(b"words")
    os.mkfifo(folder / "pipe.jpg")
    os.mkfifo(folder / "text.txt")
    (folder / "text.jpg").write_bytes(hostile.JPEG)
    (folder / "zero.jpg").symlink_to("/dev/zero")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    with open(folder / "huge.jpg", "wb") as file:
        file.truncate(1 << 40)


def _nested(folder: Path) -> None:
    """1,200 folders in one another; an image in the innermost, another outside."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        for depth in range(1200):
            if depth in (0, 1199):
                Path("i.jpg").write_bytes(hostile.JPEG)
                Path("i.txt").write_bytes(f"at {depth}".encode())
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)


def _long_names(folder: Path) -> None:
    for letter in "ab":
        (folder / f"{letter * 246}.tar").write_bytes(packed(good(letter)) + END)


def _escapes(folder: Path) -> None:
    _beside(folder)
    (folder / "\x1b]0;owned\x07\x1b[2Ja.tar").write_bytes(packed(good()))  # and has no end


def _flipped(folder: Path) -> None:
    """One byte of a compressed shard of 200 pairs is wrong, in its second half."""
    _beside(folder)
    noise = os.urandom  # which does not shrink
    members = [
        member
        for number in range(50)
        for member in hostile.sample(f"{number:03d}", hostile.JPEG, noise(2000).hex().encode())
    ]
    data = bytearray(gzip.compress(packed(members) + END))
    data[-6] ^= 1  # of the checksum
    (folder / "a.tar.gz").write_bytes(data)


def _zstandard(folder: Path) -> None:
    _beside(folder)
    (folder / "a.tar").write_bytes(b"\x28\xb5\x2f\xfd" * 9)


_LONG = packed(good("more", 1))
ATTACKS = (
    Attack("GNU sparse member of 1 TB",
           tar(_gnu_sparse("s.jpg", 1 << 40), packed([("s.txt", b"s")])),
           {"ok": 8, "image_corrupt": 1}),
    Attack("PAX sparse member of 1 TB", tar(_pax_sparse("s.jpg"), packed([("s.txt", b"s")])),
           {"ok": 8, "image_corrupt": 1}),
    Attack("sparse json of 1 TB", tar(_gnu_sparse("good1.json", 1 << 40)), {"ok": 8}),
    Attack("20 GB of holes behind a tar", _holes, {"ok": 8}, ("a",)),
    Attack("long name of 8 GB", tar(header("x", 8 << 30, tarfile.GNUTYPE_LONGNAME)),
           {"ok": 6}, ("a",)),
    Attack("PAX header of 8 GB", tar(header("x", 8 << 30, tarfile.XHDTYPE)), {"ok": 6}, ("a",)),
    Attack("PAX record without an end",
           tar(header("x", 9, tarfile.XHDTYPE) + b"99 path=a".ljust(_BLOCK, b"\0")),
           {"ok": 6}, ("a",)),
    Attack("PAX record that announces 8 GB", tar(pax({"size": str(8 << 30)}) + _LONG),
           {"ok": 6, "sample_truncated": 1}, ("a",)),
    Attack("PAX size that is no number", tar(pax({"size": "-1"}) + _LONG), {"ok": 6}, ("a",)),
    Attack("negative size", tar(header("n.jpg", 0, edit=_base256(-512)) + _LONG),
           {"ok": 6}, ("a",)),
    Attack("size of 2 to the 80", tar(header("n.jpg", 0, edit=_base256(1 << 80)) + _LONG),
           {"ok": 6, "sample_truncated": 1}, ("a",)),
    Attack("octal size with a sign", tar(header("n.jpg", 0, edit=_octal(b"-0000000777\0")) + _LONG),
           {"ok": 6}, ("a",)),
    Attack("octal size of garbage", tar(header("n.jpg", 0, edit=_octal(b"99999zz9999\0")) + _LONG),
           {"ok": 6}, ("a",)),
    Attack("links, devices and pipes in a tar",
           tar(*(header(f"l{kind}.jpg", 0, f"{kind}".encode()) for kind in (1, 2, 3, 4, 6))),
           {"ok": 8}),
    Attack("empty names, dots and NUL",
           tar(packed([("", b"x"), (".", b"x"), (".jpg", b"x"), ("..jpg", b"x")]),
               pax({"path": "n\0ul.jpg"}) + packed([("x", hostile.JPEG)])),
           {"ok": 8, "caption_missing": 1}),
    Attack("a key two thousand times",
           tar(lambda: packed([m for _ in range(2000) for m in hostile.sample("twice", b"x")])),
           {"ok": 8, "image_corrupt": 1, "duplicate_key": 1999}),
    Attack("film of 2.5 GB that nobody asks for", _mp4, {"ok": 9, "image_missing": 1}),
    Attack("image of 3 GB", _large_image, {"ok": 8, "image_too_large": 1}),
    Attack("gzip of 2 GB of zeros", _compressed(gzip.compress, _zeros, "a.tar.gz"),
           {"ok": 8}, ("a",)),
    Attack("bzip2 of 2 GB of zeros", _compressed(bz2.compress, _zeros, "a.tar"), {"ok": 8}, ("a",)),
    Attack("xz of 2 GB of zeros", _compressed(lzma.compress, _zeros, "a.tar"), {"ok": 8}, ("a",)),
    Attack("film of 2 GB of zeros in gzip", _compressed(gzip.compress, _film_of_zeros, "a.tar.gz"),
           {"ok": 8, "sample_truncated": 1}, ("a",)),
    Attack("two million captions in 35 KB",
           _compressed(gzip.compress, lambda: _captions(32_767, 61), "a.tar.gz"),
           {"ok": 4, "caption_too_large": 61}),
    Attack("many captions for each of many images",
           _compressed(gzip.compress, lambda: _captions(1000, 500), "a.tar.gz"),
           {"ok": 20_004, "caption_too_large": 480}),
    Attack("json that fills the memory", _compressed(gzip.compress, _jsons, "a.tar.gz"),
           {"ok": 8, "image_missing": 60}),
    Attack("json nested 100,000 deep",
           tar(packed([*hostile.sample("deep", hostile.JPEG), ("deep.json", b"[" * 100_000)])),
           {"ok": 9}),
    Attack("Zstandard", _zstandard, {"ok": 4}, ("a",)),
    Attack("wrong checksum of a compressed shard", _flipped, {"ok": 54}, ("a",)),
    Attack("six images of 88 million pixels", _pixels, {"ok": 10}),
    Attack("pipe called b.tar", _fifo, {"ok": 4}, ("b",)),
    Attack("socket called b.tar", _socket, {"ok": 4}, ("b",)),
    Attack("link to a device called b.tar", _device, {"ok": 4}, ("b",)),
    Attack("folder called b.tar", _folder_called_tar, {"ok": 4}, ("b",)),
    Attack("pipes and devices among images", _files_of_no_kind,
           {"ok": 1, "image_missing": 3, "image_too_large": 1, "caption_missing": 1}),
    Attack("1,200 nested folders", _nested, {"ok": 2}),
    Attack("names of 246 characters", _long_names, {"ok": 8}),
    Attack("escape codes in a name", _escapes, {"ok": 8}, ("⟨U+001B⟩]0;owned",)),
)  # fmt: skip
