"""A json with a list of objects with images: LLaVA's `[{id, image, conversations}]`, RedCaps."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ncclean.data.images.columns import CAPTION_COLUMNS
from ncclean.data.images.json_layout import Firsts, JsonLayout
from ncclean.data.images.json_list import JsonList, first_entries
from ncclean.data.images.layout import folder_beside
from ncclean.data.images.tables import name_images
from ncclean.data.images.text_rows import BrokenRow, Row, row_keys
from ncclean.data.layout import Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.sample_groups import usual_caption
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError


class JsonTable(JsonLayout):
    """The first list of objects with images: `json:data`, or `json` if the list is the file."""

    name = "json"
    takes_image_key = True

    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        return bool(_lists(firsts, options))

    def is_of_folder(self, firsts: Firsts, options: SourceOptions) -> bool:
        named = [firsts[name] for name in _lists(firsts, options)]
        return any(usual_caption(first, CAPTION_COLUMNS) is not None for first in named)

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        size, version, _ = super().facts(file, options)
        first, *others = _lists(first_entries(file.url), options)
        if others:
            names = ", ".join(f"`{name}`" for name in (first, *others))
            raise InputError(f"{file.url} has several lists of images, {names}: make each a file")
        return Facts(size, version, first or "")

    def open(self, url: str, detail: str) -> JsonList:
        return JsonList(url, detail or None, is_alike=name_images)

    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        keys = row_keys(entry)
        return {keys[name]: value for name, value in entry.items()}


class RedCaps(JsonLayout):
    """Annotations of RedCaps; its downloader puts images into a folder for each subreddit."""

    name = "redcaps"
    list_name = "annotations"

    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        return firsts.get(self.list_name, {}).keys() >= {"image_id", "subreddit", "raw_caption"}

    def root(self, url: str) -> str:
        return folder_beside(url, ["images"])

    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        folder, name = entry.get("subreddit"), entry.get("image_id")
        if not isinstance(folder, str) or not isinstance(name, str):
            return BrokenRow("an annotation without `subreddit` or `image_id`")
        return {"file_name": posixpath.join(folder, f"{name}.jpg"), **entry}


def _lists(firsts: Firsts, options: SourceOptions) -> list[str | None]:
    return [name for name, first in firsts.items() if name_images([*first], options.image_key)]
