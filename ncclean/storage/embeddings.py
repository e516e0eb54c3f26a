"""Exported embeddings in clip-retrieval's layout, read without loading them.

`img_emb/img_emb_<i>.npy`, `text_emb/text_emb_<i>.npy` and `metadata/metadata_<i>.parquet` hold the
same pairs in the same order. Local files are memory-mapped; those of an object store are first
copied to a temporary folder.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean import schema, stores
from ncclean.errors import InputError
from ncclean.scoring.neighbours.matrix import EmbeddingMatrix

# float16 keeps a norm to about 1e-3.
_NORM_TOLERANCE = 0.01
_FOLDERS = {"img_emb": "npy", "text_emb": "npy", "metadata": "parquet"}
_REQUIRED = ("uid", "shard", "key")


@dataclass(frozen=True)
class Embeddings:
    """The pairs of a corpus: (n, d) images and captions, and which pair each row belongs to.

    `pairs` has the columns uid, shard and key; `captions` is None where none were exported.
    """

    image: EmbeddingMatrix
    text: EmbeddingMatrix
    pairs: pa.Table
    captions: list[str | None] | None


@contextlib.contextmanager
def open_embeddings(folder: str) -> Iterator[Embeddings]:
    """The embeddings below `folder`, with their files in numerical order.

    Raises `InputError` for a folder without embeddings, a file that is missing or unreadable,
    shapes that do not match, rows that are not finite and of length 1, and an empty corpus.
    """
    with contextlib.ExitStack() as stack:
        listed = {name: _list(stores.location(folder), name) for name in _FOLDERS}
        numbers = _common_numbers(folder, listed)
        if stores.is_url(folder):
            local = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ncclean-")))
            listed = {name: _fetch(files, local / name) for name, files in listed.items()}
        parts = [[listed[name][number] for name in _FOLDERS] for number in numbers]
        yield _read(folder, parts)


def _list(folder: UPath, name: str) -> dict[int, UPath]:
    """Number -> file of one of the three folders."""
    pattern = re.compile(rf"{name}_(\d+)\.{_FOLDERS[name]}$")
    inside = folder / name

    def look() -> dict[int, UPath]:
        files = sorted(inside.iterdir(), key=str) if inside.is_dir() else []
        return {int(match[1]): file for file in files if (match := pattern.match(file.name))}

    files = stores.ask("read", inside, look)
    if not files:
        what = f"{name}_<i>.{_FOLDERS[name]}"
        raise InputError(
            f"{inside} holds no {what}: EMBEDDINGS is a folder that `ncclean score --embeddings` "
            "or clip-retrieval wrote"
        )
    return files


def _common_numbers(folder: str, listed: dict[str, dict[int, UPath]]) -> list[int]:
    every = set().union(*listed.values())
    for name, files in listed.items():
        if missing := sorted(every - files.keys()):
            raise InputError(
                f"{folder}/{name} lacks number {missing[0]} that another folder has; "
                "run the command that writes the embeddings to its end"
            )
    return sorted(every)


def _fetch(files: dict[int, UPath], into: Path) -> dict[int, UPath]:
    into.mkdir()
    fetched = {}
    for number, file in files.items():
        fetched[number] = UPath(into / file.name)
        stores.ask("read", file, file.fs.get_file, file.path, str(fetched[number]))
    return fetched


def _read(folder: str, parts: list[list[UPath]]) -> Embeddings:
    images: list[np.ndarray] = []
    texts: list[np.ndarray] = []
    tables: list[pa.Table] = []
    for image_file, text_file, metadata_file in parts:
        image, text = _array(image_file), _array(text_file)
        table = _metadata(metadata_file)
        if image.shape != text.shape:
            raise InputError(
                f"{image_file} has the shape {image.shape}, but {text_file} {text.shape}"
            )
        if len(table) != len(image):
            raise InputError(
                f"{metadata_file} has {len(table):,} rows for {len(image):,} embeddings"
            )
        if images and image.shape[1] != images[0].shape[1]:
            raise InputError(
                f"{image_file} has {image.shape[1]} dimensions, the files before it "
                f"{images[0].shape[1]}: all must come from one model"
            )
        for file, array in ((image_file, image), (text_file, text)):
            _check_normalised(file, array)
        images.append(image)
        texts.append(text)
        tables.append(table)
    pairs = pa.concat_tables(tables)
    if not len(pairs):
        raise InputError(f"{folder} holds no embeddings: all of its files are empty")
    captions = pairs.column("caption").to_pylist()
    has_captions = any(caption is not None for caption in captions)
    return Embeddings(
        EmbeddingMatrix(images),
        EmbeddingMatrix(texts),
        pairs.select(list(_REQUIRED)),
        captions if has_captions else None,
    )


def _array(file: UPath) -> np.ndarray:
    """A memory-mapped (n, d) matrix of floats."""
    try:
        array: np.ndarray = np.load(str(file), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} cannot be read as a .npy matrix: {error}") from error
    if array.ndim != 2 or array.dtype.kind != "f" or array.shape[1] == 0:
        raise InputError(
            f"{file} must be an (n, d) matrix of floats, got {array.dtype} {array.shape}"
        )
    return array


def _metadata(file: UPath) -> pa.Table:
    try:
        table = pq.read_table(str(file))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file} cannot be read as Parquet: {error}") from error
    if missing := [name for name in _REQUIRED if name not in table.column_names]:
        raise InputError(
            f"{file} has no column {missing[0]}; `ncclean score --embeddings` writes "
            f"{', '.join(schema.EMBEDDING_METADATA.names)}"
        )
    columns = {name: table.column(name).cast(pa.string()) for name in _REQUIRED}
    if "caption" in table.column_names:
        columns["caption"] = table.column("caption").cast(pa.string())
    else:
        columns["caption"] = pa.nulls(len(table), pa.string())
    return pa.table(columns)


def _check_normalised(file: UPath, array: np.ndarray) -> None:
    for start in range(0, len(array), 65_536):
        rows = array[start : start + 65_536].astype(np.float32)
        norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
        wrong = np.flatnonzero(~(np.abs(norms - 1) <= _NORM_TOLERANCE))
        if len(wrong):
            row, norm = start + wrong[0], norms[wrong[0]]
            what = f"a length of {norm:.3g}" if np.isfinite(norm) else "NaN or infinite values"
            raise InputError(
                f"{file} row {row} has {what}; embeddings must be finite and L2-normalised"
            )
