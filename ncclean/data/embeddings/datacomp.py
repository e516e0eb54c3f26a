"""DataComp's layout: `<name>.parquet` beside `<name>.npz`, an archive of named matrices."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from ncclean.base import stores
from ncclean.base.regular_files import check_is_file
from ncclean.data.embeddings.layout import EmbeddingLayout, Keys, Vectors, required
from ncclean.data.embeddings.vectors import BROKEN, Header, check_matrix, read_header
from ncclean.data.layout import Source, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError, one_line

_TABLE, _ARCHIVE = ".parquet", ".npz"
# Floats that are not all alike never compress to a two hundredth.
_LARGEST_RATIO = 200
_WORTH_A_LOOK = 256 << 20


class DataComp(EmbeddingLayout):
    """DataComp's layout: matrices such as `l14_img` and `l14_txt` in one `.npz`.

    The archive is read as a whole.
    """

    name = "datacomp"
    files = ".npz files beside Parquet files"
    keys_of = ".npz"

    def files_of(self, source: Source, options: SourceOptions) -> list[SourceFile]:
        if not _is_one(source):
            return []
        if source.url.endswith((_TABLE, _ARCHIVE)):
            stems = [source.url.rpartition(".")[0]]
        else:
            files = (name for name in source.names if name.endswith((_TABLE, _ARCHIVE)))
            stems = sorted({source.below(name).rpartition(".")[0] for name in files})
        return [SourceFile(self, f"{stem}{_TABLE}", (f"{stem}{_ARCHIVE}",)) for stem in stems]

    def cut(self, row_groups: Sequence[int], rows: int) -> list[int]:
        return [sum(row_groups)]

    def vector_names(self, shard: ShardRef) -> list[str]:
        return [name for name, shape in _npz_shapes(shard.files[0]).items() if len(shape) == 2]

    def dimensions(self, shard: ShardRef, keys: Keys | None) -> tuple[int, int]:
        image, text = required(shard, keys)
        shapes = _npz_shapes(shard.files[0])
        try:
            return int(shapes[image][1]), int(shapes[text][1])
        except (KeyError, IndexError) as error:
            raise ShardError(f"{shard.files[0]} has no matrix {image}") from error

    def read(self, shard: ShardRef, table: pa.Table, keys: Keys | None) -> tuple[Vectors, Vectors]:
        image, text = _read_npz(shard.files[0], required(shard, keys), len(table))
        return Vectors(image), Vectors(text)


def _is_one(source: Source) -> bool:
    if source.url.endswith(_TABLE):
        archive = stores.location(source.url.removesuffix(_TABLE) + _ARCHIVE)
        return bool(stores.ask("read", archive, archive.exists))
    return any(name.endswith(_ARCHIVE) for name in (source.url, *source.names))


def _npz_shapes(url: str) -> dict[str, tuple[int, ...]]:
    """Return the arrays of an `.npz` and their shapes. Raises `ShardError` if it cannot be read."""
    with _npz(url) as archive:
        shapes = {}
        for name in archive.namelist():
            try:
                with archive.open(name) as member:
                    shapes[name.removesuffix(".npy")] = read_header(url, member).shape
            except BROKEN as error:
                raise ShardError(f"{url}: {name} cannot be read: {one_line(error)}") from error
        return shapes


def _read_npz(url: str, keys: Sequence[str], rows: int) -> list[np.ndarray]:
    """Read several (n, d) matrices of floats from one `.npz`, of `rows` rows each.

    Raises `ShardError`, before unpacking, if one is missing or has the wrong size: a few bytes may
    stand for gigabytes.
    """
    with _npz(url) as archive:
        names = set(archive.namelist())
        matrices = []
        for key, what in zip(keys, ("image", "caption"), strict=True):
            if f"{key}.npy" not in names:
                arrays = ", ".join(sorted(name.removesuffix(".npy") for name in names))
                raise ShardError(f"{url} has no {key}: it has {arrays}")
            try:
                with archive.open(f"{key}.npy") as member:
                    header = read_header(url, member)
                check_matrix(f"{key} of {url}", header.shape, header.dtype)
                _check_size(url, key, header, archive.getinfo(f"{key}.npy"), rows, what)
                with archive.open(f"{key}.npy") as member:
                    matrix: np.ndarray = npy.read_array(member, allow_pickle=False)
            except BROKEN as error:
                raise ShardError(f"{url}: {key} cannot be read: {one_line(error)}") from error
            matrices.append(matrix)
        return matrices


def _check_size(
    url: str, key: str, header: Header, member: zipfile.ZipInfo, rows: int, what: str
) -> None:
    if header.shape[0] != rows:
        raise ShardError(f"{url} has {rows:,} rows for {header.shape[0]:,} {what} embeddings")
    size = header.size + header.shape[0] * header.shape[1] * header.dtype.itemsize
    if member.file_size != size:
        raise ShardError(f"{url}: {key} has {member.file_size:,} bytes, {size:,} were announced")
    if size > max(_WORTH_A_LOOK, _LARGEST_RATIO * member.compress_size):
        raise ShardError(
            f"{url}: {key} unpacks from {member.compress_size:,} to {size:,} bytes: not read"
        )


def _npz(url: str) -> zipfile.ZipFile:
    try:
        source: str | BinaryIO = url
        if stores.is_url(url):
            source = io.BytesIO(stores.read_bytes(stores.location(url)))
        check_is_file(url)
        return zipfile.ZipFile(source)
    except BROKEN as error:
        raise ShardError(f"{url} cannot be read as .npz: {one_line(error)}") from error
