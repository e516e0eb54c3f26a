"""Fifty attacks more: what a file means, not which of its bytes are wrong.

See `attacks.py`.
"""

from __future__ import annotations

import bz2
import csv
import functools
import gzip
import io
import itertools
import json
import lzma
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests import hostile
from tests.attacks import END, Attack, good, header, packed, pax, tar
from tests.footers import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    PACKED,
    UNPACKED,
    VALUES,
    Footer,
    encoded,
    rewrite_footer,
    set_field,
)
from tests.table_attacks import one_huge_text, parquet, table, with_ordinary

_ROWS = 20
_BLOCK = 512
_PACKED_ZEROS = 256 << 20
_SCHEMA, _STATISTICS, _UNPACKED_PAGE = 2, 12, 2  # numbers of fields: of a footer, column, page
_LISTS, _I32, _I64, _BINARY, _STRUCT = 9, 5, 6, 8, 12  # types of Thrift


# Images, each between ordinary pairs of a tar.


def image(data: bytes | Callable[[], bytes], name: str = "x.png") -> Callable[[Path], None]:
    """Writes a tar with an image and its caption; `data` may be a function that makes it."""

    def write(folder: Path) -> None:
        made = data if isinstance(data, bytes) else data()
        tar(packed([(name, made), (f"{name.partition('.')[0]}.txt", b"a strange image")]))(folder)

    return write


def _png(*chunks: tuple[bytes, bytes], width: int = 64, height: int = 64) -> bytes:
    """A PNG of black pixels, with `chunks` between its header and its pixels."""
    pixels = zlib.compress(bytes((3 * 64 + 1) * 64))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pieces = [b"\x89PNG\r\n\x1a\n"]
    for name, body in ((b"IHDR", head), *chunks, (b"IDAT", pixels), (b"IEND", b"")):
        crc = struct.pack(">I", zlib.crc32(name + body))
        pieces += [struct.pack(">I", len(body)), name, body, crc]
    return b"".join(pieces)


@functools.cache
def _zeros_packed(size: int = _PACKED_ZEROS) -> bytes:
    packer = zlib.compressobj(9)
    pieces = [packer.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join(pieces) + packer.flush()


def _tiff(ifds: Sequence[Sequence[tuple[int, int, int, int]]], following: Sequence[int]) -> bytes:
    """A TIFF of directories: (tag, type, count, value) entries, and the number of the next one.

    -1 is no next one. Its only pixels are 64 bytes at 8.
    """
    begin = 8 + 64
    places = list(itertools.accumulate((6 + 12 * len(ifd) for ifd in ifds), initial=begin))
    pieces = [b"II*\0", struct.pack("<I", begin), bytes(64)]
    for ifd, after in zip(ifds, following, strict=True):
        entries = b"".join(struct.pack("<HHII", *entry) for entry in ifd)
        next_place = 0 if after < 0 else places[after]
        pieces += [struct.pack("<H", len(ifd)), entries, struct.pack("<I", next_place)]
    return b"".join(pieces)


def _grey(width: int = 8, height: int = 8, **changed: tuple[int, int, int]) -> list[Any]:
    """The entries of a grey TIFF; `changed` replaces (type, count, value) of t256 and others."""
    entries = {256: (4, 1, width), 257: (4, 1, height), 258: (3, 1, 8), 259: (3, 1, 1),
               262: (3, 1, 1), 273: (4, 1, 8), 277: (3, 1, 1), 278: (4, 1, height),
               279: (4, 1, 64)}  # fmt: skip
    entries |= {int(name.removeprefix("t")): value for name, value in changed.items()}
    return [(tag, *entry) for tag, entry in sorted(entries.items())]


def _scans(count: int, side: int = 8000) -> bytes:
    """A progressive JPEG whose last scan comes `count` times: each goes over all its blocks."""
    data = hostile.encoded(Image.new("RGB", (side, side)), "JPEG", progressive=True, quality=90)
    last = data.rindex(b"\xff\xda")
    tables = max(data.rfind(b"\xff\xc4", 0, last), 0)
    scan = data[tables:-2] if data[tables:last].count(b"\xff\xda") == 0 else data[last:-2]
    return data[:-2] + scan * count + b"\xff\xd9"


def _segments(marker: int, body: bytes, count: int) -> bytes:
    """A JPEG with `count` segments of one kind before its own."""
    segment = bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body
    return hostile.JPEG[:2] + segment * count + hostile.JPEG[2:]


def _exif_in_a_circle() -> bytes:
    """An EXIF directory whose sub-directory and whose successor are itself."""
    ifd = struct.pack("<HHHIIHHII", 2, 0x8769, 4, 1, 8, 0x0112, 3, 1, 6) + struct.pack("<I", 8)
    return _segments(0xE1, b"Exif\0\0II*\0" + struct.pack("<I", 8) + ifd, 1)


def _frames(kind: str, count: int, side: int = 16) -> bytes:
    frames = [Image.new("RGB", (side, side), (n % 256, n // 256, 7)) for n in range(count)]
    buffer = io.BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def _large_frames(count: int) -> bytes:
    """A GIF of 9,000 x 9,000 pixels and many frames of one pixel."""
    head = b"GIF89a" + struct.pack("<HH", 9000, 9000) + b"\x80\0\0" + bytes(3) + b"\xff" * 3
    frame = b"\x2c" + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0\x02\x02\x44\x01\0"
    return head + frame * count + b"\x3b"


def _bmp_of_runs() -> bytes:
    """A BMP of 9,000 x 9,000 pixels in a few bytes: its rows end at once."""
    runs = b"\0\0" * 8999 + b"\0\1"
    palette = bytes(1024)
    head = struct.pack("<IiiHHIIiiII", 40, 9000, 9000, 1, 8, 1, len(runs), 0, 0, 256, 0)
    place = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", place + len(runs), 0, 0, place) + head + palette + runs


def _avif_that_announces(width: int, height: int) -> bytes:
    """A small AVIF whose properties announce another size."""
    data = bytearray(hostile.encoded(hostile.photo(), "AVIF"))
    place = data.index(b"ispe") + 8
    data[place : place + 8] = struct.pack(">II", width, height)
    return bytes(data)


# Tars.


def _packed_tar(name: str, *pieces: Callable[[], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tar()(folder)
        (folder / "a.tar").unlink()
        (folder / name).write_bytes(b"".join(piece() for piece in pieces))

    return write


def _whole() -> bytes:
    return packed(good()) + END


def _incompressible() -> bytes:
    noise = [(f"{n}.jpg", hostile.JPEG + os.urandom(20_000)) for n in range(20)]
    texts = [(f"{n}.txt", b"words") for n in range(20)]
    pairs = [member for pair in zip(noise, texts, strict=True) for member in pair]
    return packed([*good(), *pairs]) + END


def _xz_of_a_large_dictionary() -> bytes:
    """An xz whose only block announces a dictionary of 1.5 GB."""
    data = bytearray(lzma.compress(_whole()))
    end = 12 + 4 * (data[12] + 1) - 4  # of the block's header, before its checksum
    data[data.index(b"\x21\x01", 12) + 2] = 37
    data[end : end + 4] = struct.pack("<I", zlib.crc32(data[12:end]))
    return bytes(data)


def _gzip_with_a_long_name() -> bytes:
    body = gzip.compress(_whole())
    return body[:3] + b"\x08" + body[4:10] + b"n" * (4 << 20) + b"\0" + body[10:]


def _link(name: str, target: str, kind: bytes = tarfile.LNKTYPE) -> bytes:
    def edit(block: bytearray) -> None:
        block[157 : 157 + len(target)] = target.encode()

    return header(name, 0, kind, edit)


def _long_names(count: int) -> bytes:
    """Long names of a long name of a long name ... of an image."""
    one = header("x", 6, tarfile.GNUTYPE_LONGNAME) + b"n.jpg\0".ljust(_BLOCK, b"\0")
    return one * count + packed([("n.jpg", hostile.JPEG), ("n.txt", b"words")])


def _size_in_pax() -> bytes:
    """An image whose own header says that it has no bytes."""
    size = len(hostile.JPEG)
    body = hostile.JPEG + bytes(-size % _BLOCK)
    return pax({"size": str(size)}) + header("p.jpg", 0) + body + packed([("p.txt", b"words")])


def _bad_names() -> bytes:
    def edit(block: bytearray) -> None:
        block[0:8] = b"\xff\xfe\xed\xa0\x80.jpg"[:8]

    return header("12345678", 0, edit=edit) + packed([("\u202egpj.txt", b"words")])


# Captions, each of one image.


def caption(text: str | bytes, name: str = "c.txt") -> Callable[[Path], None]:
    data = text if isinstance(text, bytes) else text.encode()
    return tar(packed([("c.jpg", hostile.JPEG), (name, data)]))


# Parquet.


def changed(change: Callable[[Footer], object]) -> Callable[[Path], None]:
    """Writes Parquet as `parquet` does, and changes the footer of `t`."""

    def write(folder: Path) -> None:
        parquet()(folder)
        rewrite_footer(folder / "t.parquet", change)

    return write


def one_column(**options: Any) -> Callable[[pa.Array], Callable[[Path], None]]:
    """Writes images, and captions that are given, with options of pyarrow's writer."""

    def with_captions(captions: Callable[[], pa.Array]) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            parquet()(folder)
            columns = {
                "key": pa.array([f"row{number}" for number in range(_ROWS)]),
                "jpg": pa.array([hostile.JPEG] * _ROWS),
                "caption": captions(),
            }
            pq.write_table(pa.table(columns), folder / "t.parquet", **options)

        return write

    return with_captions


def _nested(inner: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """What all rows share, in something around it."""
    return inner(one_huge_text())


def _list_of(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)


def _map_of(values: pa.Array) -> pa.Array:
    keys = pa.array(["k"] * len(values))
    return pa.MapArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), keys, values)


def _struct_of(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values], ["inner"])


def _millions_of_nulls() -> pa.Array:
    """Twenty lists, the first of 50 million nothings."""
    count = 50_000_000
    offsets = pa.array([0, *[count] * _ROWS], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.nulls(count, pa.string()))


def _shared_beginnings() -> pa.Array:
    """Captions that only end differently: with front coding 100 MB, decoded 2 GB."""
    return pa.array(["x" * 100_000_000 + str(number) for number in range(_ROWS)], pa.large_string())


def _deep_schema(depth: int) -> Callable[[Footer], object]:
    """Puts the last column into `depth` groups that lie in one another."""

    def change(footer: Footer) -> None:
        kind, (inner, elements) = footer.fields[_SCHEMA]
        group = {3: (_I32, 1), 4: (_BINARY, b"g"), 5: (_I32, 1)}
        footer.fields[_SCHEMA] = kind, (inner, [*elements[:-1], *[group] * depth, elements[-1]])
        for chunk in footer.columns()[2::3]:
            paths = chunk[3][1][1]
            chunk[3] = _LISTS, (_BINARY, [b"g"] * depth + paths)

    return change


def _many_row_groups(folder: Path) -> None:
    """A footer that announces two billion row groups, and ends."""
    parquet()(folder)
    path = folder / "t.parquet"
    data = path.read_bytes()
    schema = encoded(_LISTS, (_STRUCT, [{4: (_BINARY, b"s"), 5: (_I32, 0)}]))
    announced = b"\xfc\xff\xff\xff\xff\x07"  # a list of 2 ** 31 - 1 structs
    footer = b"\x15\x02\x19" + schema + b"\x16\x00\x19" + announced
    path.write_bytes(data[:4] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def _large_statistics(footer: Footer) -> None:
    for chunk in footer.columns():
        chunk[_STATISTICS] = _STRUCT, {1: (_BINARY, b"x" * 8_000_000), 2: (_BINARY, b"")}


def _pages_that_lie(unpacked: int) -> Callable[[Path], None]:
    """The pages of images say that they unpack to other sizes; so do copies behind all else."""

    def write(folder: Path) -> None:
        parquet()(folder)
        path = folder / "t.parquet"
        data = path.read_bytes()
        begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        footer, body = Footer(data[begin:-8]), data[:begin]
        for column in footer.columns()[1::3]:
            place = column.get(DICTIONARY_PAGE, column[DATA_PAGE])[1]
            pages = data[place : place + column[PACKED][1]]
            first = Footer(pages)
            first.fields[_UNPACKED_PAGE] = _I32, unpacked
            moved = first.to_bytes() + pages[first.size :]
            shift = len(body) - place
            for name in (DATA_PAGE, DICTIONARY_PAGE):
                if name in column:
                    is_second = name == DATA_PAGE and DICTIONARY_PAGE in column
                    grown = len(moved) - len(pages) if is_second else 0
                    column[name] = _I64, column[name][1] + shift + grown
            column[PACKED] = _I64, len(moved)
            body += moved
        tail = footer.to_bytes()
        path.write_bytes(body + tail + len(tail).to_bytes(4, "little") + b"PAR1")

    return write


def _million_columns() -> bytes:
    return b",".join(b"c%d" % n for n in range(1_000_000)) + b"\na.jpg,c\n"


def _many_columns(folder: Path) -> None:
    parquet()(folder)
    path = folder / "t.parquet"
    rows = pq.read_table(path)
    nothing = pa.nulls(_ROWS, pa.int8())
    names = [f"c{number}" for number in range(100_000)]
    wide = pa.table([*rows.columns, *[nothing] * len(names)], [*rows.column_names, *names])
    pq.write_table(wide, path, write_statistics=False, use_dictionary=False)


# Arrow.


def arrow(
    change: Callable[[bytes], bytes] = bytes,
    is_file: bool = False,
    compression: str | None = None,
    **columns: Any,
) -> Callable[[Path], None]:
    """Writes images and captions as Arrow, twice: `t` with `columns`, and its bytes changed."""

    def write(folder: Path) -> None:
        ordinary, changed = with_ordinary(columns)
        (folder / "t.arrow").write_bytes(
            change(_ipc(pa.record_batch(changed), is_file, compression))
        )
        (folder / "z.arrow").write_bytes(_ipc(pa.record_batch(ordinary), is_file, None))

    return write


def _ipc(batch: pa.RecordBatch, is_file: bool, compression: str | None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    opened = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with opened(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new)

    return change


def _packed_lengths(length: int) -> Callable[[bytes], bytes]:
    """Lets each packed buffer say that it unpacks to `length` bytes."""

    def change(data: bytes) -> bytes:
        magic = b"\x28\xb5\x2f\xfd"
        changed, place = bytearray(data), data.find(magic)
        while place >= 0:
            changed[place - 8 : place] = struct.pack("<q", length)
            place = data.find(magic, place + 4)
        return bytes(changed)

    return change


def _caption_offsets(last: int) -> Callable[[bytes], bytes]:
    """Lets the last caption end at another place than it does."""
    ends = list(itertools.accumulate(len(f"caption {n}") for n in range(_ROWS)))
    usual = struct.pack("<2i", *ends[-2:])
    return _replaced(usual, struct.pack("<2i", ends[-2], last))


def _gigabytes() -> pa.Array:
    """Twenty values, of which the first are 3 GB of nothing."""
    size = 3 << 30
    offsets = pa.py_buffer(struct.pack(f"<{_ROWS + 1}q", 0, *[size] * _ROWS))
    return pa.Array.from_buffers(
        pa.large_binary(), _ROWS, [None, offsets, pa.py_buffer(bytes(size))]
    )


def _nothing_without_end(folder: Path) -> None:
    """Two billion rows of nothing, which take no byte."""
    arrow()(folder)
    rows = pa.nulls(2**31 - 1)
    batch = pa.record_batch({"jpg": rows, "caption": rows})
    (folder / "t.arrow").write_bytes(_ipc(batch, False, None))


def _runs(folder: Path) -> None:
    """One run of two billion images, and one of as many captions."""
    arrow()(folder)
    ends = pa.array([2**31 - 1], pa.int64())
    columns = {"jpg": pa.array([hostile.JPEG]), "caption": pa.array(["a caption"])}
    batch = pa.record_batch(
        {name: pa.RunEndEncodedArray.from_arrays(ends, one) for name, one in columns.items()}
    )
    (folder / "t.arrow").write_bytes(_ipc(batch, False, None))


def _views() -> pa.Array:
    """Twenty views of one text of 100 MB."""
    text = b"x" * 100_000_000
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * _ROWS), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string_view(), _ROWS, buffers)


# Text.


def coco(text: str) -> Callable[[Path], None]:
    """Writes images, and a json of COCO's kind with `text` in it beside its annotations."""

    def write(folder: Path) -> None:
        for number in range(_ROWS):
            (folder / f"{number}.jpg").write_bytes(hostile.JPEG)
        images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(_ROWS)]
        annotations = [{"image_id": n, "caption": f"caption {n}"} for n in range(_ROWS)]
        whole = json.dumps({"images": images, "annotations": annotations})
        (folder / "t.json").write_text(whole[:-1] + text + "}")

    return write


def lines(*others: str, name: str = "t.jsonl") -> Callable[[Path], None]:
    """Writes json lines of ordinary rows, with others among them."""
    rows = [json.dumps({"key": str(n), "file_name": "a.jpg", "text": f"caption {n}"})
            for n in range(_ROWS)]  # fmt: skip
    rows[_ROWS // 2 : _ROWS // 2] = others
    return table("".join(f"{row}\n" for row in rows).encode("utf-8", "surrogatepass"), name)


def _csv_rows(separator: str = ",", end: str = "\n") -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=separator, lineterminator=end)
    writer.writerows([["key", "file_name", "text"]])
    writer.writerows([[str(n), "a.jpg", f"caption {n}"] for n in range(_ROWS)])
    return buffer.getvalue()


def _zeros_in_a_csv(folder: Path) -> None:
    table()(folder)
    (folder / "t.csv").unlink()
    with gzip.open(folder / "t.csv.gz", "wb") as file:
        file.write(_csv_rows().encode())
        for _ in range(512):
            file.write(bytes(1 << 20))


# Folders.


def _circles(folder: Path) -> None:
    """Folders that lead back to themselves."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "up").symlink_to("..")
        (folder / name / "self").symlink_to(".")
        (folder / name / f"{name}.jpg").write_bytes(hostile.JPEG)
        (folder / name / f"{name}.txt").write_bytes(b"words")


def _names_of_any_bytes(folder: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", b"\xed\xa0\x80", b" ", b"ordinary"):
        for ending, data in ((b".jpg", hostile.JPEG), (b".txt", b"words")):
            with open(os.path.join(os.fsencode(folder), name + ending), "wb") as file:
                file.write(data)


_MARKS = "\u0301\u0327"  # of two classes, which normal forms sort
_WORD = 8_000_000 - 1
MORE_ATTACKS = (
    # Images.
    Attack("PNG of 2 to the 62 pixels", image(_png(width=2**31 - 1, height=2**31 - 1)),
           {"ok": 8, "image_too_large": 1}),
    Attack("PNG with a compressed text of 256 MB",
           image(lambda: _png((b"zTXt", b"Comment\0\0" + _zeros_packed()))),
           {"ok": 8, "image_corrupt": 1}),
    Attack("PNG with a colour profile of 256 MB",
           image(lambda: _png((b"iCCP", b"profile\0\0" + _zeros_packed()))),
           {"ok": 8, "image_corrupt": 1}),
    Attack("PNG with 100,000 texts",
           image(lambda: _png(*[(b"tEXt", b"k%d\0v" % n) for n in range(100_000)])), {"ok": 9}),
    Attack("PNG whose pixels unpack to 256 MB",
           image(lambda: _png((b"IDAT", _zeros_packed()))), {"ok": 9}),
    Attack("animated PNG that announces two billion frames",
           image(_png((b"acTL", struct.pack(">II", 2**31 - 1, 0)))), {"ok": 9}),
    Attack("GIF of 10,000 frames", image(lambda: _frames("GIF", 10_000), "x.gif"), {"ok": 9}),
    Attack("GIF of 81 million pixels and 100,000 frames",
           image(lambda: _large_frames(100_000), "x.gif"), {"ok": 9}),
    Attack("WebP of 268 million pixels",
           image(lambda: hostile.encoded(Image.new("RGB", (16383, 16383)), "WEBP", lossless=True,
                                         method=0), "x.webp"),
           {"ok": 8, "image_too_large": 1}),
    Attack("animated WebP of 12 frames of 4 million pixels",
           image(lambda: _frames("WEBP", 12, 2000), "x.webp"), {"ok": 9}),
    Attack("AVIF that announces 4 billion pixels",
           image(_avif_that_announces(65535, 65535), "x.avif"), {"ok": 8, "image_corrupt": 1}),
    Attack("AVIF that announces 81 million pixels",
           image(_avif_that_announces(9000, 9000), "x.avif"), {"ok": 9}),
    Attack("TIFF directories in a circle", image(_tiff([_grey(), _grey()], [1, 0]), "x.tif"),
           {"ok": 9}),
    Attack("TIFF of 50,000 directories",
           image(lambda: _tiff([_grey()] * 50_000, [*range(1, 50_000), -1]), "x.tif"), {"ok": 9}),
    Attack("TIFF with a tag of 16 GB", image(_tiff([_grey(t305=(2, 2**32 - 1, 8))], [-1]), "x.tif"),
           {"ok": 9}),
    Attack("TIFF with 4 billion samples a pixel",
           image(_tiff([_grey(t277=(4, 1, 2**32 - 1))], [-1]), "x.tif"),
           {"ok": 8, "image_corrupt": 1}),
    Attack("TIFF with a strip of 4 GB",
           image(_tiff([_grey(t279=(4, 1, 2**32 - 1))], [-1]), "x.tif"),
           {"ok": 9}),
    Attack("JPEG of 64 million pixels with 1,000 scans", image(lambda: _scans(1000), "x.jpg"),
           {"ok": 8, "image_corrupt": 1}),
    Attack("JPEG with 2,000 segments of a colour profile",
           image(_segments(0xE2, b"ICC_PROFILE\0\1\1" + bytes(9000), 2000), "x.jpg"), {"ok": 9}),
    Attack("JPEG with an EXIF directory in a circle", image(_exif_in_a_circle(), "x.jpg"),
           {"ok": 9}),
    Attack("BMP of 81 million pixels in 20 KB", image(_bmp_of_runs(), "x.bmp"),
           {"ok": 8, "image_corrupt": 1}),
    Attack("PostScript called jpg",
           image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n{} loop\n", "x.jpg"),
           {"ok": 8, "image_corrupt": 1}),
    # Tars.
    Attack("gzip of 100,000 empty members",
           _packed_tar("a.tar.gz", lambda: gzip.compress(b"") * 100_000,
                       lambda: gzip.compress(_whole())), {"ok": 8}),
    Attack("bzip2 of 100,000 empty streams",
           _packed_tar("a.tar", lambda: bz2.compress(_whole()),
                       lambda: bz2.compress(b"") * 100_000), {"ok": 8}),
    Attack("xz that is cut",
           _packed_tar("a.tar", lambda: lzma.compress(_incompressible())[:-200_000]),
           {"ok": 18, "sample_truncated": 1}, ("a",)),
    Attack("xz that announces a dictionary of 1.5 GB",
           _packed_tar("a.tar", _xz_of_a_large_dictionary), {"ok": 8}),
    Attack("gzip with a name of 4 MB", _packed_tar("a.tar.gz", _gzip_with_a_long_name),
           {"ok": 8}),
    Attack("100,000 folders in a tar",
           tar(*[header("f/", 0, tarfile.DIRTYPE)] * 100_000), {"ok": 8}),
    Attack("20,000 global headers in a tar",
           tar(*[pax({"comment": "x" * 300}).replace(b"ustar", b"ustar")] * 20_000), {"ok": 8}),
    Attack("50,000 files of one pair",
           tar(lambda: packed([(f"many.{number}", b"") for number in range(50_000)])),
           {"ok": 8, "image_missing": 1}),
    Attack("hard links in a circle",
           tar(_link("l1.jpg", "l2.jpg"), _link("l2.jpg", "l1.jpg"), _link("l3.jpg", "l3.jpg"),
               _link("l4.jpg", "../../etc/passwd", tarfile.SYMTYPE)), {"ok": 8}),
    Attack("10,000 long names of one another", tar(lambda: _long_names(10_000)), {"ok": 9}),
    Attack("size that only PAX tells", tar(_size_in_pax()), {"ok": 9}),
    Attack("names of any bytes in a tar", tar(_bad_names()), {"ok": 8, "image_missing": 2}),
    # Captions.
    Attack("caption of one word of 8 MB", caption("a" * _WORD), {"ok": 9}),
    Attack("caption of punctuation of 8 MB", caption("!?" * (_WORD // 2)), {"ok": 9}),
    Attack("caption of 4 million Chinese characters", caption("\u5b57" * (_WORD // 3)), {"ok": 9}),
    Attack("caption of a million nothings", caption("\u200b" * 1_000_000 + "word"), {"ok": 9}),
    Attack("caption of a letter with 400,000 marks", caption("a" + _MARKS * 200_000), {"ok": 9}),
    Attack("caption of two million entities", caption("&amp;" * 1_000_000 + "&" * 1_000_000),
           {"ok": 9}),
    Attack("caption of 8 MB of blanks and a word", caption(" \n\t" * (_WORD // 3) + "x"),
           {"ok": 9}),
    Attack("caption with half of a pair", caption(b'{"caption": "\\ud83d word"}', "c.json"),
           {"ok": 8, "caption_not_text": 1}),
    Attack("caption of a number of 100,000 digits",
           caption(b'{"caption": ' + b"9" * 100_000 + b"}", "c.json"),
           {"ok": 8, "caption_missing": 1}),
    # Parquet.
    Attack("Parquet with a text of 100 MB in structs", parquet(other=lambda: _nested(_struct_of)),
           {"ok": 40}),
    Attack("Parquet with a text of 100 MB in lists", parquet(other=lambda: _nested(_list_of)),
           {"ok": 40}),
    Attack("Parquet with a text of 100 MB in maps", parquet(other=lambda: _nested(_map_of)),
           {"ok": 40}),
    Attack("Parquet with lists of captions of 100 MB", parquet(caption=lambda: _nested(_list_of)),
           {"ok": 20, "row_broken": 20}),
    Attack("Parquet with a list of 50 million nulls", parquet(caption=_millions_of_nulls),
           {"ok": 20, "row_broken": 1, "caption_missing": 19}),
    Attack("Parquet with captions that share 100 MB",
           one_column(use_dictionary=False, column_encoding={"caption": "DELTA_BYTE_ARRAY"},
                      compression="zstd")(_shared_beginnings),
           {"ok": 20, "row_broken": 20}),
    Attack("Parquet whose chunks have a billion values", changed(set_field(VALUES, 10**9)),
           {"ok": 40}),
    Attack("Parquet whose pages lie at one another's places", changed(set_field(DATA_PAGE, 4)),
           {"ok": 20, "image_corrupt": 10, "duplicate_key": 10}),
    Attack("Parquet whose dictionary lies behind its pages",
           changed(set_field(DICTIONARY_PAGE, 1 << 40)), {"ok": 20, "row_broken": 20}, ("t",)),
    Attack("Parquet whose pages unpack to 2 GB by their word", _pages_that_lie(2**31 - 1),
           {"ok": 20, "row_broken": 20}),
    Attack("Parquet whose pages unpack to a negative size", _pages_that_lie(-1),
           {"ok": 20, "row_broken": 20}, ("t",)),
    Attack("Parquet with two billion row groups announced", _many_row_groups, {"ok": 20}, ("t",)),
    Attack("Parquet with 50 MB of statistics", changed(_large_statistics), {"ok": 40}),
    Attack("Parquet with 100,000 columns", _many_columns, {"ok": 20, "row_broken": 20},
           ("t",)),
    Attack("Parquet with a schema 100,000 deep", changed(_deep_schema(100_000)), {"ok": 20},
           ("t",)),
    Attack("Parquet whose chunks say that they are nothing", changed(set_field(PACKED, 0)),
           {"ok": 20, "row_broken": 20}, ("t",)),
    Attack("Parquet whose chunks unpack to an exabyte", changed(set_field(UNPACKED, 1 << 60)),
           {"ok": 40}),
    # Arrow.
    Attack("Arrow whose buffers unpack to 1 TB",
           arrow(_packed_lengths(1 << 40), compression="zstd"),
           {"ok": 20}, ("t",)),
    Attack("Arrow whose buffers unpack to a negative size",
           arrow(_packed_lengths(-7), compression="zstd"), {"ok": 20}, ("t",)),
    Attack("Arrow with a caption that ends at 2 GB", arrow(_caption_offsets(2**31 - 1)),
           {"ok": 20, "row_broken": 20}, ("t",)),
    Attack("Arrow with a caption that ends before it begins", arrow(_caption_offsets(-5)),
           {"ok": 20, "row_broken": 20}, ("t",)),
    Attack("Arrow with one text of 100 MB for all rows",
           arrow(compression="zstd", caption=one_huge_text),
           {"ok": 20, "row_broken": 20}, ("t",)),
    Attack("Arrow with views of one text of 100 MB", arrow(compression="zstd", caption=_views),
           {"ok": 20, "row_broken": 20}, ("t",)),
    Attack("Arrow with 3 GB of zeros nobody asks for",
           arrow(compression="zstd", other=_gigabytes), {"ok": 20}, ("t",)),
    Attack("Arrow file that is cut", arrow(lambda data: data[:-300], is_file=True),
           {"ok": 20}, ("t",)),
    Attack("Arrow stream with a message of -2 GB",
           arrow(lambda data: data[:4] + b"\0\0\0\x80" + data[8:]), {"ok": 20}, ("t",)),
    Attack("Arrow with two billion rows of nothing", _nothing_without_end, {"ok": 20}, ("t",)),
    Attack("Arrow with a run of two billion images", _runs, {"ok": 20}, ("t",)),
    # Text.
    Attack("COCO with 100,000 nested lists", coco(', "info": ' + "[" * 100_000 + "]" * 100_000),
           {"ok": 20}, ("t",), source="t.json"),
    Attack("COCO with a key of 10 MB", coco(f', "{"k" * 10_000_000}": 1'), {"ok": 20},
           source="t.json"),
    Attack("COCO with a number of 10 MB", coco(f', "info": {"9" * 10_000_000}'), {"ok": 20}, ("t",),
           source="t.json"),
    Attack("COCO with a second list of images", coco(', "images": []'), {"ok": 20}, ("t",),
           source="t.json"),
    Attack("jsonl with numbers that no machine has",
           lines('{"file_name": "a.jpg", "text": 1e400}',
                 '{"file_name": "a.jpg", "text": ' + "9" * 100_000 + "}",
                 '{"file_name": "a.jpg", "text": NaN}'),
           {"ok": 20, "caption_missing": 2, "row_broken": 1}),
    Attack("jsonl with a key of 10 MB, and with keys twice",
           lines(json.dumps({"k" * 10_000_000: 1, "file_name": "a.jpg", "text": "c"}),
                 '{"file_name": "none.jpg", "file_name": "a.jpg", "text": "c"}'),
           {"ok": 22}),
    Attack("jsonl with half of a pair",
           lines('{"file_name": "a.jpg", "text": "\\ud800"}', '{"file_name": "\\ud800.jpg"}'),
           {"ok": 20, "caption_not_text": 1, "caption_missing": 1}),
    Attack("csv with NUL bytes", table(row10="10,a.jpg,\0\0", row11="\0"),
           {"ok": 18, "caption_not_text": 1, "image_missing": 1}),
    Attack("csv with a million columns", table(_million_columns), {"caption_missing": 1}),
    Attack("csv with a row of a million columns", table(row10="10,a.jpg,c" + "," * 1_000_000),
           {"ok": 19, "row_broken": 1}),
    Attack("csv with a byte order mark", table(b"\xef\xbb\xbf" + _csv_rows().encode()),
           {"ok": 20}),
    Attack("csv with ends of old Macs", table(_csv_rows(end="\r").encode()), {"ok": 20}),
    Attack("csv of mixed encodings",
           table(_csv_rows().encode().replace(b"caption 10", "caf\u00e9".encode("latin-1"))),
           {"ok": 19, "caption_not_text": 1}),
    Attack("csv in gzip with 512 MB of nothing", _zeros_in_a_csv, {"ok": 20}, ("t",)),
    Attack("tsv of quotes", table(("\"\t" * 100_000 + "\n").encode(), "t.tsv"),
           {"caption_missing": 1}),
    # Folders.
    Attack("folders in circles", _circles, {"ok": 2}),
    Attack("names of any bytes", _names_of_any_bytes, {"ok": 5}),
)  # fmt: skip
# What they come to without a wall.
