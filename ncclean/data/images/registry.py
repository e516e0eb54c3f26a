"""The layouts of images, in the order in which a source is tried."""

from __future__ import annotations

from ncclean.data.images.arrow_images import ArrowImages
from ncclean.data.images.class_folders import ClassFolders
from ncclean.data.images.folders import Folder
from ncclean.data.images.json_layouts import Coco, JsonTable, Karpathy, RedCaps
from ncclean.data.images.lance_images import LanceImages
from ncclean.data.images.layout import ImageLayout, Reading, RowLayout
from ncclean.data.images.npc import Npc
from ncclean.data.images.parquet_images import ParquetImages
from ncclean.data.images.text_tables import TextTable
from ncclean.data.layout import Source
from ncclean.data.options import SourceOptions
from ncclean.data.shards import SUFFIXES, WEBDATASET, ShardRef, is_tar, tars_in
from ncclean.data.tar import TarSamples
from ncclean.errors import ShardError


class Tars(ImageLayout):
    """The layout of tars, ordinary or compressed, each of which is a shard."""

    name = WEBDATASET
    endings = SUFFIXES

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        return [source.url] if is_tar(source.url) else tars_in(source.url)

    def samples(self, shard: ShardRef, reading: Reading) -> TarSamples:
        return TarSamples(
            shard, reading.caption_key, reading.opened, whole=reading.whole, wanted=reading.wanted
        )


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
    """Return the layout of a shard of images."""
    return _BY_NAME[shard.layout.partition(":")[0]]


def has_rows(shard: ShardRef) -> bool:
    """Check whether a shard consists of rows that hold or name their images."""
    return isinstance(layout_of(shard), RowLayout)


def table_at(url: str) -> RowLayout:
    """Return the layout of a file of rows by its name. Raises `ShardError` if there is none."""
    for layout in LAYOUTS:
        if isinstance(layout, RowLayout) and layout.endings and url.endswith(layout.endings):
            return layout
    raise ShardError(f"{url} is no table")
