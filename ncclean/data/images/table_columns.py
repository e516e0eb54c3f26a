"""Whether a table is one of images, by its columns."""

from __future__ import annotations

import pyarrow as pa

from ncclean.data.images.columns import IMAGE_COLUMNS, PATH_COLUMNS, STRUCT_FIELDS
from ncclean.data.images.rows import columns_of
from ncclean.data.images.text_rows import LINES, SEPARATED
from ncclean.data.nested_fields import head_of
from ncclean.data.parquet_table import vector_columns
from ncclean.errors import ShardError

TABLES = (".parquet", *SEPARATED, *LINES)
# Hugging Face's imagefolder.
METADATA = tuple(f"metadata{ending}" for ending in TABLES)


def holds_images(url: str, image_key: str | None = None) -> bool:
    """Whether a table has a column of images or of paths, and can be read that far."""
    try:
        columns = columns_of(url)
    except ShardError:
        return False
    names = columns.names if isinstance(columns, pa.Schema) else columns
    if image_key is not None:
        return head_of(image_key) in {name.lower() for name in names}
    if not isinstance(columns, pa.Schema):
        return bool({*IMAGE_COLUMNS, *PATH_COLUMNS} & {name.lower() for name in columns})
    kinds = {field.name.lower(): field.type for field in columns}
    if any(name in kinds and _is_image_type(kinds[name]) for name in IMAGE_COLUMNS):
        return True
    if any(pa.types.is_struct(kind) and _fields(kind) >= STRUCT_FIELDS for kind in kinds.values()):
        return True
    has_paths = any(name in kinds and _is_text(kinds[name]) for name in PATH_COLUMNS)
    return has_paths and len(vector_columns(columns)) < 2  # else embeddings


def is_unreadable(url: str) -> bool:
    """Whether a table can only be of images, but cannot be read: then it is a unit that fails.

    A Parquet file may hold anything, unless it has the name of an imagefolder's metadata.
    """
    if url.endswith(".parquet") and url.rpartition("/")[2] not in METADATA:
        return False
    try:
        columns_of(url)
    except ShardError:
        return True
    return False


def _is_image_type(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return bool(_fields(kind) & STRUCT_FIELDS)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_bytes) or _is_text(kind)


def _fields(kind: pa.DataType) -> set[str]:
    return {kind.field(number).name for number in range(kind.num_fields)}


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
