"""Find tables of images or of their paths, as files and in folders."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Collection

import pyarrow as pa

from ncclean.data.images.arrow_rows import is_byte_list
from ncclean.data.images.columns import IMAGE_COLUMNS, STRUCT_FIELDS, is_path_column
from ncclean.data.images.folders import has_captioned_images, has_image_files
from ncclean.data.images.layout import OutForm, RowLayout
from ncclean.data.images.text_rows import COMPRESSED, LINES, SEPARATED
from ncclean.data.layout import Source
from ncclean.data.nested_fields import head_of
from ncclean.data.options import SourceOptions
from ncclean.data.parquet_table import vector_columns
from ncclean.errors import InputError, ShardError

PARQUET = ".parquet"
TEXTS = (*SEPARATED, *LINES, *(f"{one}{COMPRESSED}" for one in (*SEPARATED, *LINES)))
TABLES = (PARQUET, *TEXTS)
# Hugging Face's imagefolder.
METADATA = tuple(f"metadata{ending}" for ending in TABLES)


class TableLayout(RowLayout):
    """The layout of tables of images: a file, all files of a folder, or a folder's metadata."""

    files: tuple[str, ...]  # file name endings
    form: OutForm  # export form of tables that are not an imagefolder's metadata

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        if source.url.endswith(self.files) and not source.entries:
            is_one = self.holds_images(source.url, options.image_key)
            return [source.url] if is_one or self.is_unreadable(source.url) else []
        candidates = [name for name in source.files if name.endswith((*TABLES, *self.files))]
        metadata = [name for name in candidates if name in METADATA]
        tables = [
            source.below(name) for name in metadata or candidates if name.endswith(self.files)
        ]
        # One readable file decides for all of its ending: a corpus has thousands, some are broken.
        by_ending = [[url for url in tables if url.endswith(one)] for one in self.files]
        holding = [
            urls
            for urls in by_ending
            if any(self.holds_images(url, options.image_key) for url in urls)
        ]
        if not holding and tables:
            # Without it, the images of the folder would have no captions.
            are_needed = _lacks_captions(source.url)
            unreadable = tables if metadata or are_needed else ()
            first = next((url for url in unreadable if self.is_unreadable(url)), None)
            if first is None and metadata and are_needed:
                raise InputError(self.lacks_images(tables[0]))
            holding = [urls for urls in by_ending if first in urls]
        return list(itertools.chain.from_iterable(holding))

    def written_as(self, urls: Collection[str]) -> OutForm:
        if all(posixpath.basename(url) in METADATA for url in urls):
            return "folder"
        return self.form

    def holds_images(self, url: str, image_key: str | None = None) -> bool:
        """Check whether a readable table has a column of images or of their paths."""
        try:
            columns = self.columns(url)
        except ShardError:
            return False
        return name_images(columns, image_key)

    def is_unreadable(self, url: str) -> bool:
        """Check whether a file is a table of images that cannot be read: a shard that will fail."""
        try:
            self.columns(url)
        except ShardError:
            return True
        return False

    def lacks_images(self, url: str) -> str:
        """Return the error for a table without a column of images. Raises `ShardError`."""
        columns = self.columns(url)
        names = columns.names if isinstance(columns, pa.Schema) else columns
        return (
            f"{url} names no images; the columns of its first rows are: "
            f"{', '.join(map(str, names)) or 'none'}. One of paths is called file_name, filepath, "
            "image_path, ..."
        )


def name_images(columns: pa.Schema | list[str], image_key: str | None = None) -> bool:
    """Check whether columns hold images or their paths, by names and a `Schema`'s types."""
    names = {
        name.lower() for name in (columns.names if isinstance(columns, pa.Schema) else columns)
    }
    if image_key is not None:
        return head_of(image_key) in names
    if not isinstance(columns, pa.Schema):
        return not names.isdisjoint(IMAGE_COLUMNS) or any(map(is_path_column, names))
    kinds = {field.name.lower(): field.type for field in columns}
    if any(name in kinds and _is_image_type(kinds[name]) for name in IMAGE_COLUMNS):
        return True
    if any(pa.types.is_struct(kind) and _fields(kind) >= STRUCT_FIELDS for kind in kinds.values()):
        return True
    has_paths = any(is_path_column(name) and is_text(kind) for name, kind in kinds.items())
    return has_paths and len(vector_columns(columns)) < 2  # otherwise embeddings


def _is_image_type(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return bool(_fields(kind) & STRUCT_FIELDS)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_bytes = is_bytes or pa.types.is_binary_view(kind) or is_byte_list(kind)
    return bool(is_bytes) or is_text(kind)


def _fields(kind: pa.DataType) -> set[str]:
    return {kind.field(number).name for number in range(kind.num_fields)}


def is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_string = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(is_string or pa.types.is_string_view(kind))


def _lacks_captions(folder: str) -> bool:
    """Check whether a folder has images and no captions beside them."""
    try:
        return has_image_files(folder) and not has_captioned_images(folder)
    except ShardError:
        return False
