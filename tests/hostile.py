"""Hostile shards: one generator for every kind of bad input, with what must come of it."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

Member = tuple[str, bytes]


@dataclass(frozen=True)
class Case:
    """Members of one shard, and the (key, status) of each row expected, in order."""

    name: str
    members: list[Member]
    rows: list[tuple[str, str]]


@dataclass(frozen=True)
class BrokenShard:
    """The bytes of a shard that must be reported failed, and the rows that survive."""

    name: str
    data: bytes
    rows: list[tuple[str, str]] = field(default_factory=list)


def tar_bytes(members: Iterable[Member]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def photo(width: int = 90, height: int = 70, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


def sample(
    key: str, image: bytes, caption: bytes = b"a red circle", ext: str = "jpg"
) -> list[Member]:
    return [(f"{key}.{ext}", image), (f"{key}.txt", caption)]


JPEG = encoded(photo())


def images() -> dict[str, tuple[str, bytes, str]]:
    """Name -> extension, bytes, expected status."""
    frames = [photo(seed=seed) for seed in range(3)]
    gray16 = Image.fromarray(np.arange(4900, dtype=np.uint16).reshape(70, 70) * 13)
    rotated = Image.Exif()
    rotated[0x0112] = 6
    animation = {"save_all": True, "append_images": frames[1:], "duration": 50}
    corrupt = bytearray(JPEG)
    corrupt[2:40] = b"\0" * 38
    return {
        "plain": ("jpg", JPEG, "ok"),
        "progressive": ("jpg", encoded(photo(), progressive=True), "ok"),
        "gray_jpeg": ("jpg", encoded(photo().convert("L")), "ok"),
        "cmyk": ("jpg", encoded(photo().convert("CMYK")), "ok"),
        "png16": ("png", encoded(gray16, "PNG"), "ok"),
        "palette": ("png", encoded(photo().convert("P"), "PNG"), "ok"),
        "alpha": ("png", encoded(photo().convert("RGBA"), "PNG"), "ok"),
        "bilevel": ("png", encoded(photo().convert("1"), "PNG"), "ok"),
        "animated_gif": ("gif", encoded(frames[0], "GIF", **animation), "ok"),
        "animated_webp": ("webp", encoded(frames[0], "WEBP", **animation), "ok"),
        "exif_rotation": ("jpg", encoded(photo(), exif=rotated), "ok"),
        "one_pixel": ("png", encoded(photo(1, 1), "PNG"), "ok"),
        "one_pixel_jpeg": ("jpg", encoded(photo(1, 1)), "ok"),
        "line": ("png", encoded(photo(30_000, 1), "PNG"), "ok"),
        "line_jpeg": ("jpg", encoded(photo(30_000, 1)), "ok"),
        "column": ("png", encoded(photo(1, 30_000), "PNG"), "ok"),
        "png_called_jpg": ("jpg", encoded(photo(), "PNG"), "ok"),
        "upper_case": ("JPG", JPEG, "ok"),
        "truncated_jpeg": ("jpg", JPEG[: len(JPEG) // 2], "image_corrupt"),
        "truncated_png": ("png", encoded(photo(), "PNG")[:600], "image_corrupt"),
        "corrupt_jpeg": ("jpg", bytes(corrupt), "image_corrupt"),
        "html": ("jpg", b"<!DOCTYPE html><html>404</html>", "image_corrupt"),
        "random_bytes": ("jpg", np.random.default_rng(0).bytes(3000), "image_corrupt"),
        "zero_bytes": ("jpg", b"", "image_corrupt"),
        "bomb": ("png", png_header(60_000, 60_000), "image_too_large"),
        "large_bomb": ("png", png_header(200_000, 200_000), "image_too_large"),
        "just_too_large": ("png", png_header(10_000, 9_000), "image_too_large"),
    }


def captions() -> dict[str, tuple[list[Member], str]]:
    """Name -> members besides the image, expected status."""

    def text(data: bytes) -> list[Member]:
        return [("txt", data)]

    def metadata(**fields: object) -> list[Member]:
        return [("json", json.dumps(fields).encode())]

    return {
        "in_txt": (text(b"a red circle"), "ok"),
        "in_caption": ([("caption", b"a red circle")], "ok"),
        "in_json": (metadata(caption="a red circle"), "ok"),
        "in_laion_json": (metadata(TEXT="a red circle", URL="http://example.org"), "ok"),
        "broken_json_beside": ([("json", b"{not json"), ("txt", b"a red circle")], "ok"),
        "list_json_beside": ([("json", b"[1, 2]"), ("txt", b"a red circle")], "ok"),
        "deep_json_beside": ([("json", b"[" * 100_000), ("txt", b"a red circle")], "ok"),
        "megabyte": (text(b"word " * 200_000), "ok"),
        "one_long_word": (text(b"x" * 1_000_000), "ok"),
        "emoji": (text("a \U0001f534 circle \u202e".encode()), "ok"),
        "missing": ([], "caption_missing"),
        "empty": (text(b""), "caption_missing"),
        "blank": (text(b" \n\t "), "caption_missing"),
        "null_in_json": (metadata(caption=None), "caption_missing"),
        "number_in_json": (metadata(caption=7), "caption_missing"),
        "latin1": (text("caf\u00e9".encode("latin-1")), "caption_not_text"),
        "utf16": (text("a red circle".encode("utf-16")), "caption_not_text"),
        "nul": (text(b"a red\0circle"), "caption_not_text"),
        "lone_surrogate": ([("json", b'{"caption": "a \\ud800 circle"}')], "caption_not_text"),
    }


def cases() -> list[Case]:
    """Readable shards whose every sample must have one row with the expected status."""
    found = []
    members: list[Member] = []
    rows = []
    for name, (extension, data, status) in images().items():
        members += sample(name, data, ext=extension)
        rows.append((name, status))
    found.append(Case("images", members, rows))

    members, rows = [], []
    for name, (others, status) in captions().items():
        members.append((f"{name}.jpg", JPEG))
        members += [(f"{name}.{extension}", data) for extension, data in others]
        rows.append((name, status))
    found.append(Case("captions", members, rows))

    found.append(
        Case(
            "structure",
            [
                *sample("first", JPEG),
                ("no_image.txt", b"a caption without an image"),
                ("no_image.json", b'{"url": "http://example.org"}'),
                *sample("twice", JPEG),
                *sample("twice", JPEG, b"another caption"),
                *sample("../../etc/passwd", JPEG),
                *sample("/absolute/path", JPEG),
                *sample("folder/inside", JPEG),
                ("__index__.json", b"{}"),
                ("README", b"no extension, no sample"),
                ("only.cls", b"3"),
                *sample("last", JPEG),
            ],
            [
                ("first", "ok"),
                ("no_image", "image_missing"),
                ("twice", "ok"),
                ("twice", "duplicate_key"),
                ("../../etc/passwd", "ok"),
                ("/absolute/path", "ok"),
                ("folder/inside", "ok"),
                ("only", "image_missing"),
                ("last", "ok"),
            ],
        )
    )
    found.append(
        Case(
            "interleaved",
            [
                ("a.jpg", JPEG),
                ("b.jpg", JPEG),
                ("c.jpg", JPEG),
                ("c.txt", b"third"),
                ("a.txt", b"first"),
                ("b.txt", b"second"),
                ("a.json", b'{"uid": "uid-of-a", "is_noisy": true}'),
            ],
            [("a", "ok"), ("b", "ok"), ("c", "ok")],
        )
    )
    found.append(Case("no_samples", [("README", b"nothing here")], []))
    return found


def broken_shards() -> list[BrokenShard]:
    """Shards that must be reported failed; what can be read of them has rows all the same."""
    whole = tar_bytes([*sample("a", JPEG), *sample("b", JPEG), *sample("c", JPEG)])
    inside_c = whole.rindex(b"c.jpg") + 512 + len(JPEG) // 2
    before_c = whole.rindex(b"c.jpg")
    garbage = bytearray(whole)
    garbage[before_c : before_c + 512] = b"\x55" * 512
    return [
        BrokenShard("zero_bytes", b""),
        BrokenShard("not_a_tar", b"<html>504 Gateway Timeout</html>" * 100),
        BrokenShard("short", b"abc"),
        BrokenShard(
            "cut_in_image", whole[:inside_c], [("a", "ok"), ("b", "ok"), ("c", "sample_truncated")]
        ),
        BrokenShard("cut_between", whole[:before_c], [("a", "ok"), ("b", "ok")]),
        BrokenShard("garbage_inside", bytes(garbage), [("a", "ok"), ("b", "ok")]),
    ]


def write_hostile(folder: Path) -> tuple[list[Case], list[BrokenShard]]:
    """Write every case as `<name>.tar`; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    readable, broken = cases(), broken_shards()
    for case in readable:
        (folder / f"{case.name}.tar").write_bytes(tar_bytes(case.members))
    for shard in broken:
        (folder / f"{shard.name}.tar").write_bytes(shard.data)
    return readable, broken
