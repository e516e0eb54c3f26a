"""Mark files of any format with the command that wrote them.

One rule holds for files that commands write without a record of the run: a file of the same command
is replaced, any other is refused unless a person says `--overwrite`. The mark is a few words in
each format's field for its author, so it survives moving and copying. The same words anywhere else,
as in a caption or a quotation, are not a mark.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.errors import InputError

# Metadata are at the beginning; in PDF, at the end.
_LOOKED_AT = 1 << 16
# By a format's first bytes: what surrounds the mark, from there on. `%s` is the mark; a match must
# end before the end of the metadata.
_PLACES: dict[bytes, tuple[str, bytes | None]] = {
    b"{": (r'\{\s*"made_by":\s*"%s"\s*[,}]', None),
    b"<!DOCTYPE html>": (r'.*?<meta name="generator" content="ncclean [^"<>]*, %s">', b"<title"),
    b"#": (r"# %s\r?\n", None),  # YAML
    b"% ": (r"%% %s\r?\n", None),  # LaTeX
    b"<?xml": (r".*?<dc:creator>\s*<cc:Agent>\s*<dc:title>%s</dc:title>", b"</metadata>"),
    b"\x89PNG\r\n": (r".*?tEXtSoftware\0%s.{4}", b"IDAT"),
    b"\x93NUMPY": (r"\x93NUMPY\x01\0..\{[^\n]*\}[ ,]*# %s *\n", None),
    b"%PDF-": (r".* 0 obj\n<< /Creator \(%s\)\n/Producer \(Matplotlib [^\n]*>>\nendobj\n", None),
}


def mark(command: str) -> str:
    """The text that marks a file as made by `ncclean COMMAND`."""
    return f"made by ncclean {command}"


def npy_header(fields: dict[str, Any], command: str) -> bytes:
    """Return the header of a `.npy` file that says which command wrote it.

    A header is a Python literal, and the mark a comment in it. Its length stays a multiple of 64,
    so that the array can be mapped.
    """
    import numpy as np

    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, fields)
    text = buffer.getvalue()[10:].decode("latin1").rstrip() + f"  # {mark(command)}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    begin: bytes = np.lib.format.magic(1, 0)
    return begin + len(text).to_bytes(2, "little") + text.encode("latin1")


def was_made_by(path: str, command: str) -> bool:
    """Check whether the file at `path` carries the mark of the command."""
    place = stores.location(path)
    if not (stores.is_url(path) or os.path.isfile(path)):
        return False
    size = stores.ask("read", path, place.stat).st_size
    begin = stores.read_range(path, 0, min(size, _LOOKED_AT))
    if begin.startswith(b"PAR1"):
        return _metadata(place).get(b"made_by") == mark(command).encode()
    for first, (around, end) in _PLACES.items():
        if begin.startswith(first):
            if first == b"%PDF-":
                begin = stores.read_range(path, max(size - _LOOKED_AT, 0), size)
            metadata = begin.partition(end)[0] if end is not None else begin
            written = (around % re.escape(mark(command))).encode("latin1")
            return re.match(written, metadata, re.DOTALL) is not None
    return False


def _metadata(place: UPath) -> dict[bytes, bytes]:
    """Return the metadata of a Parquet file, except its captions; none for other files."""
    import pyarrow

    try:
        with stores.open_parquet(place) as file:
            return dict(file.metadata.metadata or {})
    except (OSError, pyarrow.ArrowException):
        return {}


def check_free(paths: Iterable[str | None], command: str, overwrite: bool = False) -> None:
    """Raise `InputError` if the command would replace a file that another command or program made.

    `overwrite` allows replacing files, but not folders or devices. None is skipped.
    """
    for path in paths:
        if path is None or not _is_there(path):
            continue
        if not stores.is_url(path) and os.path.exists(path) and not os.path.isfile(path):
            what = "a folder" if os.path.isdir(path) else "not a file"
            raise InputError(f"{path} is {what}: choose another path")
        if not overwrite and not was_made_by(path, command):
            raise InputError(
                f"{path} is in the way: it was not written by `ncclean {command}`. Choose another "
                "path, or use --overwrite to replace it"
            )


def _is_there(path: str) -> bool:
    if stores.is_url(path):
        return bool(stores.present_files([UPath(stores.location(path))]))
    return os.path.lexists(path)
