"""Write the samples of a task as rows: Parquet with the images, or image files with their rows."""

from __future__ import annotations

import base64
import contextlib
import os
import posixpath
import shutil
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.scratch import scratch_folder
from ncclean.base.store_errors import explain
from ncclean.data.images.columns import image_column
from ncclean.data.images.registry import has_rows
from ncclean.data.samples import Sample
from ncclean.errors import InputError
from ncclean.exporting.captions import exported_captions
from ncclean.exporting.choices import Choice, added_types
from ncclean.exporting.journal import caption_file, digest_of, write_list
from ncclean.exporting.out_layout import PARQUET, has_files
from ncclean.exporting.parquet import join_parquet, schema_of, tables_of
from ncclean.exporting.plan import ExportTask, Segment
from ncclean.exporting.rows import (
    ExportedRow,
    copy_key,
    exported_rows,
    image_path,
    left_out,
    one_caption_each,
    own_key,
)
from ncclean.exporting.tars import TarWriter
from ncclean.exporting.task import ExportOptions, ShardReport, Writer, export_segments

_BATCH_BYTES = 64 << 20  # of images; per row group, which a viewer reads in full
_GROUP_ROWS = 10_000
_BATCH_SAMPLES = 1000
_UPLOADS = 16  # at a time
_IN_THE_WAY = (FileExistsError, IsADirectoryError, NotADirectoryError)


class ExportedSample(NamedTuple):
    """A sample to write: its image, the image's path and caption, its rows, and their table.

    The table is given by its number.
    """

    image: bytes
    path: str
    caption: str | None
    rows: list[ExportedRow]
    table: int


class RowWriter(Writer):
    """Writes the samples of an export task as rows of a table."""

    def add(self, sample: Sample, copy: int, choice: Choice, segment: Segment) -> bool:
        """Write a sample, or a copy of it, as rows; return false if it lacks a selected caption.

        The rows get a key that no others have.
        """
        captions = exported_captions(sample, choice) if choice.changes_captions else None
        if choice.changes_captions and captions is None:
            return False
        shard, layout = segment.shard, self.options.layout
        key, column = self.options.caption_key, layout.caption_column
        is_arrow = layout.table.endswith(PARQUET) or layout.name == "parquet"
        rows = exported_rows(sample, captions, segment, self.names, column, key, is_arrow)
        if layout.name == "csv" and has_rows(shard):
            rows = one_caption_each(rows, key)
        if not rows:
            return False
        if (why := left_out(rows)) is not None:
            self.problems.append(f"{sample.key}: {why}, which is left out")
        for row in rows:
            numbers = None if row.captions is None else set().union(*row.captions.values())
            row.add_fields(choice.fields_of(numbers))
            if copy:
                row.rename(copy_key(sample.key, copy))
        own_key(rows, self.taken)
        caption = None if has_rows(shard) else rows[0].values[column]
        path = self._path(sample, copy, segment)
        self.report.further_images += 0 if has_rows(shard) else len(sample.further_images)
        image = sample.image or b""
        self.write(ExportedSample(image, path, caption, rows, layout.table_of(shard)))
        return True

    @abstractmethod
    def write(self, sample: ExportedSample) -> None:
        """Write a sample's rows, or hold them for a batch."""

    def _path(self, sample: Sample, copy: int, segment: Segment) -> str:
        """Return the path of a sample's image in the output."""
        shard = segment.shard
        is_file = has_files(shard)
        if has_rows(shard):
            is_file = image_column(sample.rows[0], shard.image_key)[1] is None
        root = shard.files[0] if is_file else None
        path = posixpath.join(
            self.options.layout.image_folder(root, segment.name),
            image_path(sample, root if has_rows(shard) else None, shard.image_key),
        )
        stem, ending = posixpath.splitext(path)
        return f"{copy_key(stem, copy)}{ending}"


class ParquetWriter(RowWriter):
    """Writes the samples of an export task, with their images, to one Parquet file."""

    def __init__(self, *task: Any) -> None:
        super().__init__(*task)
        self._scratch = self.stack.enter_context(scratch_folder())
        self._types = added_types(self.options.scores, self.options.columns)
        self._rows: list[ExportedRow] = []
        self._bytes = 0
        self._pieces: list[pq.ParquetWriter] = []  # one for each schema in turn

    def write(self, sample: ExportedSample) -> None:
        """Add a sample's rows, with its image, to the next batch."""
        for row in sample.rows:
            row.embed(sample.image, sample.path)
        self._rows += sample.rows
        self._bytes += len(sample.image)
        if self._bytes >= _BATCH_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> None:
        """Publish the Parquet file, unless it has no samples."""
        self._flush()
        if self._pieces:
            self._pieces[-1].close()
            pieces = [self._scratch / str(number) for number in range(len(self._pieces))]
            with published(stores.location(self.task.file)) as aside:
                if len(pieces) == 1:
                    shutil.move(pieces[0], aside)
                else:
                    join_parquet(pieces, aside)
                self.report.bytes += aside.stat().st_size
                self.report.schema = base64.b64encode(schema_of(aside).serialize()).decode()

    def _flush(self) -> None:
        for table in tables_of(self._rows, self._types):
            if not self._pieces or not self._pieces[-1].schema.equals(table.schema, True):
                for piece in self._pieces[-1:]:
                    piece.close()
                place = self._scratch / str(len(self._pieces))
                self._pieces.append(pq.ParquetWriter(place, table.schema))
            self._pieces[-1].write_table(table, row_group_size=len(table))
        self._rows, self._bytes = [], 0


class ImageWriter(RowWriter):
    """Writes the images of an export task as files, and lists their rows for the table of all.

    The names of files are listed before writing: what a killed run left can be removed.
    """

    def __init__(self, *task: Any) -> None:
        super().__init__(*task)
        self.targets = self.options.targets
        self._types = added_types(self.options.scores, self.options.columns)
        self._waiting: list[ExportedSample] = []
        self._waiting_bytes = self._listed = 0
        self._folders: set[str] = set()
        self._images: dict[str, bytes] = {}  # digests by path
        self._columns: dict[int, dict[str, None]] = {}

    def write(self, sample: ExportedSample) -> None:
        """Add a sample to the next batch of image files."""
        self._waiting.append(sample)
        self._waiting_bytes += len(sample.image)
        if self._waiting_bytes >= _BATCH_BYTES or len(self._waiting) >= _BATCH_SAMPLES:
            self._flush()

    def finish(self) -> None:
        """Write the last batch of image files, and sync all to the disk."""
        if self._waiting:
            self._flush()
        if not stores.is_url(self.targets.out) and self.report.samples:
            os.sync()  # once for thousands of files, before anything says that they exist
        self.report.columns = {str(table): [*names] for table, names in self._columns.items()}

    def _flush(self) -> None:
        waiting = list(filter(self._is_free, self._waiting))
        first, self._listed = self._listed, self._listed + len(waiting)
        tables = self.options.layout.all_tables
        rows = []
        for number, sample in enumerate(waiting, first):
            columns = self._columns.setdefault(sample.table, {})
            folder = tables[sample.table].folder
            entry = (number, sample.table, sample.path, self._images[sample.path])
            for row in sample.rows:
                row.refer(
                    posixpath.relpath(sample.path, folder or "."), self.options.layout.path_column
                )
                columns |= dict.fromkeys(row.values)
                rows.append((entry, row))
        if waiting:
            write_list(self.targets, self.task.number, self.report.batches, rows, self._types)
            self.report.batches += 1
        with ThreadPoolExecutor(_UPLOADS if stores.is_url(self.targets.out) else 1) as pool:
            for number, problem in enumerate(pool.map(self._write_files, waiting), first):
                if problem is not None:
                    self.report.left_out.append(number)
                    self._leave_out(problem)
        self._waiting, self._waiting_bytes = [], 0

    def _leave_out(self, problem: str) -> None:
        self.problems.append(problem)
        self.report.samples -= 1

    def _is_free(self, sample: ExportedSample) -> bool:
        """Check that no other image has the sample's path; else note a problem.

        A key may deliberately be the name of another's copy. Distant rows may share an image.
        """
        digest = digest_of(sample.image)
        is_free = self._images.setdefault(sample.path, digest) == digest
        if not is_free:
            self._leave_out(path_is_taken(sample.path))
        return is_free

    def _write_files(self, sample: ExportedSample) -> str | None:
        """Write the files of a sample; return why that fails, unless the disk is at fault.

        A path may be another image's folder.
        """
        files = [(sample.path, sample.image)]
        if self.options.layout.beside and sample.caption is not None:
            files.append((caption_file(sample.path), sample.caption.encode()))
        try:
            for name, data in files:
                self._write_file(self.targets.out / name, data)
        except _IN_THE_WAY as error:
            return f"{sample.path}: {error.strerror}"
        except OSError as error:
            raise InputError(explain(self.targets.out / sample.path, error)) from error
        self.report.bytes += sum(len(data) for _, data in files)
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


def export_task(task: ExportTask, options: ExportOptions) -> ShardReport:
    """Write the samples of an export task, each file whole or not at all.

    `_stats.json` comes last.
    """
    writers = {"webdataset": TarWriter, "parquet": ParquetWriter}
    with contextlib.ExitStack() as stack:
        writer = writers.get(options.layout.name, ImageWriter)(task, options, stack)
        export_segments(writer)
    return writer.report


def path_is_taken(path: str) -> str:
    """Return the message about an image whose path another image has."""
    return f"{path}: another image has this path"
