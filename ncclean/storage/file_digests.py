"""Digest files and tables, to tell whether a path now holds another one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ncclean.base import stores
from ncclean.base.local_copies import with_original_names
from ncclean.base.regular_files import open_file
from ncclean.errors import InputError
from ncclean.storage.tables import local_tables

_DIGEST_BYTES = 16
_BLOCK_BYTES = 8 << 20


def content_digest(paths: Sequence[str]) -> str:
    """Return a hex digest of all bytes of tables. Raises `InputError` if one cannot be read."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for file in local_tables(paths):
        stores.ask("read", file, _add_content, digest, file)
    return digest.hexdigest()


def footer_digest(paths: Sequence[str]) -> str:
    """Return a hex digest of the Parquet footers of tables: a few kilobytes identify a large table.

    A footer has the sizes and extremes of each column, and the facts of its run. Raises
    `InputError` if one cannot be read.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for file in local_tables(paths):
        footer = stores.ask("read", file, _footer_of, file)
        digest.update(hashlib.blake2b(footer).digest())
    return digest.hexdigest()


def _add_content(digest: hashlib.blake2b, file: str) -> None:
    with open_file(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)


def _footer_of(file: str) -> bytes:
    """Return a Parquet file's last bytes: the footer, its length of 4 bytes, a mark of 4."""
    with open_file(file) as stream:
        end = stream.seek(0, 2)
        stream.seek(max(0, end - 8))
        tail = stream.read(8)
        begin = end - 8 - int.from_bytes(tail[:4], "little")
        if tail[4:] != b"PAR1" or begin < 0:
            message = f"{file} cannot be read as Parquet: it has no footer"
            raise InputError(with_original_names(message))
        stream.seek(begin)
        return stream.read(end - 8 - begin)
