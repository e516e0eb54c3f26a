"""webdataset's tars as a layout of images."""

from __future__ import annotations

from ncclean.data.images.layout import ImageLayout, Reading
from ncclean.data.options import SourceOptions
from ncclean.data.shards import SUFFIXES, WEBDATASET, ShardRef, is_tar, tars_in
from ncclean.data.source import Source
from ncclean.data.tar import TarSamples


class Tars(ImageLayout):
    """Tars, ordinary or compressed, each of which is a shard."""

    name = WEBDATASET
    endings = SUFFIXES

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        return [source.url] if is_tar(source.url) else tars_in(source.url)

    def samples(self, shard: ShardRef, reading: Reading) -> TarSamples:
        return TarSamples(
            shard, reading.caption_key, reading.opened, whole=reading.whole, wanted=reading.wanted
        )
