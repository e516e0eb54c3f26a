"""Karpathy's `dataset_*.json`: a list of images, each with its captions and its split."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ncclean.data.images.json_layout import Firsts, JsonLayout
from ncclean.data.images.text_rows import BrokenRow, Row
from ncclean.data.layout import Facts, SourceFile
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef

SPLITS = ("train", "restval", "val", "test")


class Karpathy(JsonLayout):
    """Captions of COCO and Flickr; `karpathy:train:restval` are those of two splits."""

    name = "karpathy"
    list_name = "images"
    has_splits = True

    def matches(self, firsts: Firsts, options: SourceOptions) -> bool:
        return "sentences" in firsts.get(self.list_name, {})

    def facts(self, file: SourceFile, options: SourceOptions) -> Facts:
        # The rows of other splits are another version of the unit.
        named = [split for split in SPLITS if split in options.split]
        size, version, _ = super().facts(file, options)
        return Facts(size, ":".join([version, *named]), ":".join(named))

    def is_read(self, entry: object, detail: str) -> bool:
        return not detail or not isinstance(entry, dict) or entry.get("split") in detail.split(":")

    def row(self, entry: Mapping[str, Any], shard: ShardRef) -> Row | BrokenRow:
        name, folder = entry.get("filename"), entry.get("filepath")
        sentences = entry.get("sentences")
        if not isinstance(name, str) or not isinstance(sentences, list):
            return BrokenRow("an image without `filename` or `sentences`")
        captions = [one.get("raw") if isinstance(one, dict) else None for one in sentences]
        path = posixpath.join(folder, name) if isinstance(folder, str) and folder else name
        numbers = {key: entry[key] for key in ("imgid", "cocoid", "split") if key in entry}
        return {"file_name": path, "captions": captions, **numbers}
