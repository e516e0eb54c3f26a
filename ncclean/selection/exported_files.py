"""Exported images as files, and the rows that name them: parts of jsonl, joined to one table."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import posixpath
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO

from upath import UPath

from ncclean import stores
from ncclean.atomic import published
from ncclean.errors import InputError
from ncclean.json_values import json_text
from ncclean.regular_files import open_file
from ncclean.selection.exported_rows import ExportedRow, ExportedSample
from ncclean.selection.file_lists import ListedFile, digest_of, write_list
from ncclean.store_errors import explain

_BATCH_BYTES = 64 << 20
_BATCH_SAMPLES = 1000
_BLOCK_BYTES = 8 << 20
_UPLOADS = 16  # at a time
_IN_THE_WAY = (FileExistsError, IsADirectoryError, NotADirectoryError)


RowSink = Callable[[Sequence[ExportedRow], str], None]


class ImageFiles:
    """Writes images below `out`, and passes their rows to `write`, with the path under `column`.

    Before files are written, their names go to a list in `work`: what a killed run has left can be
    removed. With `beside`, the caption goes to a text beside each image too.
    """

    def __init__(
        self, out: UPath, work: UPath, task: str, write: RowSink, column: str, beside: bool
    ) -> None:
        self.problems: list[str] = []
        self.samples = self.bytes = 0
        self._out, self._work, self._task = out, work, task
        self._write_rows, self._column, self._beside = write, column, beside
        self._waiting: list[ExportedSample] = []
        self._waiting_bytes = self._batches = 0
        self._folders: set[str] = set()
        self._images: dict[str, bytes] = {}  # digests by path

    def add(self, sample: ExportedSample) -> None:
        """Take a sample; it is written with others."""
        self._waiting.append(sample)
        self._waiting_bytes += len(sample.image)
        if self._waiting_bytes >= _BATCH_BYTES or len(self._waiting) >= _BATCH_SAMPLES:
            self._flush()

    def finish(self) -> None:
        """Write the samples that wait, through to the disk."""
        if self._waiting:
            self._flush()
        if not stores.is_url(self._out) and self.samples:
            os.sync()  # once for thousands of files, before anything says that they are there

    def _flush(self) -> None:
        self._waiting = list(filter(self._is_free, self._waiting))
        write_list(
            self._work,
            self._task,
            self._batches,
            [
                ListedFile(name, self._images[name] if name == sample.path else None)
                for sample in self._waiting
                for name, _ in self._files(sample)
            ],
        )
        with ThreadPoolExecutor(_UPLOADS if stores.is_url(self._out) else 1) as pool:
            for sample, problem in zip(
                self._waiting, pool.map(self._write, self._waiting), strict=True
            ):
                if problem is not None:
                    self.problems.append(problem)
                    continue
                self.samples += 1
                self.bytes += sum(len(data) for _, data in self._files(sample))
                for row in sample.rows:
                    row.refer(posixpath.relpath(sample.path, sample.folder or "."), self._column)
                self._write_rows(sample.rows, sample.path)
        self._batches += 1
        self._waiting, self._waiting_bytes = [], 0

    def _is_free(self, sample: ExportedSample) -> bool:
        """Whether no other image has the path of a sample; a problem where one has.

        A key may be planted that is the name of another's copy. Rows far apart may be of one image.
        """
        digest = digest_of(sample.image)
        is_free = self._images.setdefault(sample.path, digest) == digest
        if not is_free:
            self.problems.append(path_is_taken(sample.path))
        return is_free

    def _files(self, sample: ExportedSample) -> Iterable[tuple[str, bytes]]:
        yield sample.path, sample.image
        if self._beside and sample.caption is not None:
            yield f"{posixpath.splitext(sample.path)[0]}.txt", sample.caption.encode()

    def _write(self, sample: ExportedSample) -> str | None:
        """Write the files of a sample; returns why that cannot be, if it is no error of the disk.

        A path may be that of another image's folder.
        """
        try:
            for name, data in self._files(sample):
                self._write_file(self._out / name, data)
        except _IN_THE_WAY as error:
            return f"{sample.path}: {error.strerror}"
        except OSError as error:
            raise InputError(explain(self._out / sample.path, error)) from error
        return None

    def _write_file(self, path: UPath, data: bytes) -> None:
        if stores.is_url(path):
            stores.ask("write", path, path.fs.pipe_file, path.path, data)
            return
        folder = os.path.dirname(str(path))
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        with open(str(path), "wb") as file:
            file.write(data)


def path_is_taken(path: str) -> str:
    """The problem of an image whose path another one has."""
    return f"{path}: another image has this path"


class RowLines:
    """Writes rows as lines of JSON after the number of their table and the path of their image.

    `columns` are all they have. Bytes are base64.
    """

    def __init__(self, lines: TextIO) -> None:
        self.columns: dict[str, None] = {}
        self._lines = lines

    def add(self, rows: Sequence[ExportedRow], path: str) -> None:
        """Write the rows of the image at `path`."""
        for row in rows:
            self.columns.update(dict.fromkeys(row.values))
            self._lines.write(f"{row.table}\t{path}\t{json_text(row.values)}\n")


def join_rows(
    parts: Mapping[UPath, Container[str]],
    columns: Sequence[str],
    tables: Sequence[UPath],
    separator: str | None,
) -> None:
    """Write parts as tables: all `columns` with a separator, or jsonl without one.

    Of each part, the rows of images at the given paths are left out.
    """
    lines = itertools.chain.from_iterable(itertools.starmap(_lines, parts.items()))
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(
                open(stack.enter_context(published(table)), "w", encoding="utf-8", newline="")
            )
            for table in tables
        ]
        if separator is None:
            for number, line in lines:
                files[number].write(line)
            return
        writers = [csv.writer(_RowsOnLines(file), delimiter=separator) for file in files]
        for writer in writers:
            writer.writerow(columns)
        for number, line in lines:
            values = json.loads(line)
            writers[number].writerow([_cell(values.get(name)) for name in columns])


class _RowsOnLines:
    """Ends rows with a line feed; the writer, told so, would not quote a carriage return."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, row: str) -> None:
        self._file.write(row.removesuffix("\r\n") + "\n")


def _lines(part: UPath, left_out: Container[str]) -> Iterable[tuple[int, str]]:
    url = str(part)
    opened = (
        stores.open_binary(url, block_bytes=_BLOCK_BYTES, blocks=2)
        if stores.is_url(part)
        else open_file(url)
    )
    with opened as file:
        for line in file:
            number, path, values = line.decode().split("\t", 2)
            if path not in left_out:
                yield int(number), values


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
