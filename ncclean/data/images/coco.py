"""COCO's own `captions_*.json`: a list of images, and one of captions that name an image's id."""

from __future__ import annotations

import contextlib
import functools
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclean.data.images.json_layout import Firsts, JsonLayout
from ncclean.data.images.json_list import JsonList
from ncclean.data.images.layout import Reading, folder_beside
from ncclean.data.images.samples import TableSamples
from ncclean.data.images.text_rows import BrokenRow, Row
from ncclean.data.layout import Cut, Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef
from ncclean.data.source import Source
from ncclean.errors import InputError, ShardError, one_line

_FOLDER = "annotations"
_FILE = re.compile(r"captions_((train|val|test)[^/]*)\.json")
_CAPTIONS = "annotations"
_MOST_HELD = 1 << 28  # characters; COCO has 40 million


class Coco(JsonLayout):
    """Captions of COCO, and of what has its form.

    Of `annotations/captions_train2017.json`, the images lie in `train2017` or `images` beside it.
    """

    name = "coco"
    list_name = "images"
    has_other_lists = True
    has_splits = True

    def sources(self, source: Source, options: SourceOptions) -> list[str]:
        if _FOLDER in source.names:
            names = sorted(filter(_FILE.fullmatch, source.names_in(_FOLDER)))
            return [source.below(_FOLDER, name) for name in names]
        return super().sources(source, options)

    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        captions, images = firsts.get(_CAPTIONS, {}), firsts.get(self.list_name, {})
        return captions.keys() >= {"image_id", "caption"} or images.keys() >= {"id", "file_name"}

    def root(self, url: str) -> str:
        name = _FILE.fullmatch(posixpath.basename(url))
        folders = [name[1], f"images/{name[1]}"] if name else []
        return folder_beside(url, [*folders, "images"])

    def split_of(self, url: str) -> str | None:
        name = _FILE.fullmatch(posixpath.basename(url))
        return name[2] if name else None

    def cuts(self, file: SourceFile, facts: Facts, options: SourceOptions) -> Sequence[Cut]:
        captions = _captions_of(file.url, facts.version)[0].values()
        if not any(isinstance(text, str) for several in captions for text in several):
            raise InputError(f"{file.url} has no captions: name the file captions_*.json beside it")
        return super().cuts(file, facts, options)

    def samples(self, shard: ShardRef, reading: Reading) -> TableSamples:
        samples = super().samples(shard, reading)
        is_first = shard.rows is None or shard.rows[0] == 0  # counted once for a file
        if reading.wanted is None and is_first and (lost := self._of_no_image(shard)):
            samples.further.add(samples.further.captions, "of no image", lost)
        return samples

    def _of_no_image(self, shard: ShardRef) -> int:
        """The number of captions whose image is not in the list of images."""
        captions = dict(_captions_of(shard.url, shard.version)[0])
        with contextlib.suppress(OSError, ShardError), self.open(shard.url, "") as images:
            images.seek(0)
            for image in images:
                number = image.get("id") if isinstance(image, dict) else None
                if isinstance(number, int | str):
                    captions.pop(number, None)
        return sum(map(len, captions.values()))

    def rows(self, shard: ShardRef, whole: bool = False) -> Iterator[Row | BrokenRow]:
        yield from super().rows(shard, whole)
        if failure := _captions_of(shard.url, shard.version)[1]:
            raise ShardError(failure)

    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        name, number = entry.get("file_name"), entry.get("id")
        if not isinstance(name, str) or not isinstance(number, int | str):
            return BrokenRow("an image without `file_name` or `id`")
        captions = _captions_of(shard.url, shard.version)[0].get(number, [])
        url = entry.get("coco_url") or entry.get("url")
        return {"file_name": name, "captions": captions, "imgid": number, "url": url}


@functools.lru_cache(maxsize=2)  # units of one file come one after another
def _captions_of(url: str, version: str) -> tuple[dict[int | str, list[Any]], str]:
    """Captions by the id of their image, and why there may be more that cannot be read, or ""."""
    del version  # another file
    captions: dict[int | str, list[Any]] = defaultdict(list)
    held = 0
    try:
        with JsonList(url, _CAPTIONS, has_others=True) as entries:
            entries.seek(0)
            for entry in entries:
                number = entry.get("image_id") if isinstance(entry, dict) else None
                if isinstance(number, int | str):
                    captions[number].append(entry.get("caption"))
                    held += len(str(captions[number][-1]))
                if held > _MOST_HELD:
                    raise ShardError(f"{url} has captions of more than {_MOST_HELD:,} characters")
    except (OSError, ShardError) as error:
        return captions, one_line(error)
    return captions, ""
