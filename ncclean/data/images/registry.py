"""The layouts of images, in the order in which a source is tried."""

from __future__ import annotations

from ncclean.data.images.arrow_images import ArrowImages
from ncclean.data.images.class_folders import ClassFolders
from ncclean.data.images.coco import Coco
from ncclean.data.images.folders import Folder
from ncclean.data.images.json_table import JsonTable, RedCaps
from ncclean.data.images.karpathy import Karpathy
from ncclean.data.images.lance_images import LanceImages
from ncclean.data.images.layout import ImageLayout, RowLayout
from ncclean.data.images.npc import Npc
from ncclean.data.images.parquet_images import ParquetImages
from ncclean.data.images.tars import Tars
from ncclean.data.images.text_tables import TextTable
from ncclean.data.shards import ShardRef
from ncclean.errors import ShardError

TARS = Tars()
LAYOUTS: tuple[ImageLayout, ...] = (
    ClassFolders(),
    LanceImages(),
    Npc(),
    ParquetImages(),
    TextTable(),
    ArrowImages(),
    Karpathy(),
    RedCaps(),
    Coco(),
    JsonTable(),
    Folder(),
)
_BY_NAME = {layout.name: layout for layout in (TARS, *LAYOUTS)}


def layout_of(shard: ShardRef) -> ImageLayout:
    """The layout of a shard of images."""
    return _BY_NAME[shard.layout.partition(":")[0]]


def has_rows(shard: ShardRef) -> bool:
    """Whether a shard is of rows, which hold or name their images."""
    return isinstance(layout_of(shard), RowLayout)


def table_at(url: str) -> RowLayout:
    """The layout of a file of rows by its name. Raises `ShardError` if it is of none."""
    for layout in LAYOUTS:
        if isinstance(layout, RowLayout) and layout.endings and url.endswith(layout.endings):
            return layout
    raise ShardError(f"{url} is no table")
