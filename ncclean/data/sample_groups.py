"""Which members of a shard make a sample: the one rule that scoring, export and injection share.

A sample is the members that share a key. It is finished when its image and caption have been read
and the next key begins; one that lacks either waits, in case its members are interleaved with
others. So samples may finish out of order: their row is the order of first appearance. Of samples
that share a key the first one to finish counts; the others are repeats.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ncclean.data.member_names import split_name
from ncclean.data.samples import Unread
from ncclean.data.text_budget import LARGEST_PARSED, LARGEST_TEXT, parsed_size

IMAGE_EXTENSIONS = frozenset(
    ("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif")
)
# Pictures that Pillow does not read; HEIC is what phones write.
UNREAD_EXTENSIONS = frozenset(("heic", "heif"))
HEIC_NOT_READ = "HEIC, which is not read: convert it to JPEG or AVIF"
CAPTION_EXTENSIONS = ("txt", "caption")
JSON_CAPTIONS = ("caption", "text")  # fields of a json
# webdataset's own: members called __something__ describe the shard, not a sample.
_SHARD_METADATA = re.compile(r"__[^/]*__($|/|\.)")
# How many incomplete samples may wait for members that come later in the shard.
_WAITING_SAMPLES = 8192
_WAITING_BYTES = 256 << 20
_DEEPEST = 100  # levels of a json
_LATE = -1  # row of a group that seems to be metadata of a sample finished before


class Group(ABC):
    """The members of one sample as far as they have been read, by extension."""

    __slots__ = ("is_cut", "is_repeat", "key", "members", "row")

    def __init__(self, row: int, key: str) -> None:
        self.row, self.key = row, key
        self.members: dict[str, Any] = {}
        self.is_cut = False  # the shard ends inside one of its members
        self.is_repeat = False  # another sample with this key finished before

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of all tar members of a sample."""

    @property
    @abstractmethod
    def has_caption(self) -> bool:
        """Whether a sample's members include a caption, usable or not."""


G = TypeVar("G", bound=Group)


class SampleGroups(Generic[G]):
    """Groups the members of a shard, given in order, into samples.

    Put a member into `current` if it has the same key and no such extension yet; otherwise call
    `turn_to` first. `late` holds the json members that followed their finished sample, by its row,
    as long as there is room for them.
    """

    def __init__(self, new_group: Callable[[int, str], G]) -> None:
        self.current: G | None = None
        self.samples = 0
        self.late: dict[int, G] = {}
        self._new_group = new_group
        self._rows: dict[str, int] = {}  # key -> row of its sample, once finished
        self._waiting: dict[str, G] = {}
        self._waiting_bytes = 0
        self._late_bytes = 0

    def turn_to(self, key: str, extension: str) -> list[G]:
        """Make the sample of this tar member the current one; returns the completed samples."""
        finished = self.pause()
        self.current = self._resume(key, extension) or self._begin(key, extension)
        return finished

    def pause(self) -> list[G]:
        """Close the current sample, as another key begins; returns the completed samples."""
        group, self.current = self.current, None
        return [] if group is None else self._settle(group)

    def cut(self, key: str) -> list[G]:
        """Mark that the tar ends inside a member of this key; returns the completed samples."""
        finished: list[G] = []
        if self.current is None or self.current.key != key:
            finished = self.turn_to(key, "")
        if self.current is not None:
            self.current.is_cut = True
        return finished

    def end(self) -> list[G]:
        """The samples left at the end of the shard."""
        group, self.current = self.current, None
        finished = [] if group is None else self._settle(group, is_last=True)
        finished += [self._finish(group) for group in self._waiting.values()]
        self._waiting = {}
        return finished

    def _begin(self, key: str, extension: str) -> G:
        if key in self._rows and extension == "json":
            return self._new_group(_LATE, key)  # most likely metadata of a finished sample
        self.samples += 1
        return self._new_group(self.samples - 1, key)

    def _resume(self, key: str, extension: str) -> G | None:
        """The waiting group that a member belongs to, if it has no such member yet."""
        group = self._waiting.get(key)
        if group is None or extension in group.members:
            return None
        self._waiting_bytes -= group.size
        return self._waiting.pop(key)

    def _settle(self, group: G, is_last: bool = False) -> list[G]:
        """Finish a group that is complete, or let it wait for the rest of its members."""
        if group.row == _LATE:
            if group.members.keys() == {"json"}:
                self._late_bytes += group.size
                if self._late_bytes <= _WAITING_BYTES:
                    self.late[self._rows[group.key]] = group
                return []
            group.row = self.samples  # more came under the key: a sample of its own after all
            self.samples += 1
        if is_last or (has_image(group.members) and group.has_caption):
            return [self._finish(group)]
        finished = []
        if group.key in self._waiting:  # the same members twice: the earlier one is done waiting
            finished.append(self._finish_waiting(group.key))
        self._waiting[group.key] = group
        self._waiting_bytes += group.size
        while len(self._waiting) > _WAITING_SAMPLES or self._waiting_bytes > _WAITING_BYTES:
            finished.append(self._finish_waiting(next(iter(self._waiting))))
        return finished

    def _finish_waiting(self, key: str) -> G:
        group = self._waiting.pop(key)
        self._waiting_bytes -= group.size
        return self._finish(group)

    def _finish(self, group: G) -> G:
        group.is_repeat = self._rows.setdefault(group.key, group.row) != group.row
        return group


def sample_member(name: str) -> tuple[str, str] | None:
    """Key and lower-case extension of a member; None if it belongs to no sample."""
    if name.startswith("__") and _SHARD_METADATA.match(name):
        return None
    key, extension = split_name(name)
    return None if key is None else (utf8(key), utf8(extension).lower())


def has_image(extensions: Collection[str]) -> bool:
    return not IMAGE_EXTENSIONS.isdisjoint(extensions) or any(map(is_image, extensions))


def is_image(extension: str) -> bool:
    return extension.rsplit(".", 1)[-1] in IMAGE_EXTENSIONS


def is_unread_image(extension: str) -> bool:
    """Whether a tar member is a picture in a format that is not read."""
    return extension.rsplit(".", 1)[-1] in UNREAD_EXTENSIONS


def parse_json(raw: bytes) -> dict[str, Any]:
    """The fields of a json member under lower-case names (LAION writes TEXT and URL).

    A broken json costs its fields, not the sample: the caption may lie beside it. So does one that
    would fill the memory.
    """
    return {name.lower(): value for name, value in (json_object(raw) or {}).items()}


def json_object(raw: bytes) -> dict[str, Any] | None:
    """The object that a json holds; None if it is broken, too large, or nested too deep."""
    if len(raw) > LARGEST_TEXT or parsed_size(raw) > LARGEST_PARSED:
        return None
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    may_be_deep = raw.count(b"[") + raw.count(b"{") > _DEEPEST
    is_usable = isinstance(parsed, dict) and not (may_be_deep and _is_deep(parsed))
    return parsed if is_usable else None


def _is_deep(value: object) -> bool:
    """Whether a parsed json is nested so deep that it may not be written again."""
    level = [value]
    for _ in range(_DEEPEST):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # type: ignore[attr-defined]
            if isinstance(inner, dict | list)
        ]
    return True


def usual_caption(fields: Mapping[str, Any], names: Sequence[str]) -> object:
    """The caption under the first of the names that has one, or a list of captions.

    Without a text an empty one or a list of them, if only for the rows of its entries; else None.
    """
    values = [value for name in names if (value := fields.get(name)) is not None]
    captions = [value for value in values if may_be_caption(value)]
    lists = [value for value in values if isinstance(value, list) and value]
    return next(filter(None, captions), next(iter([*captions, *lists]), None))


def may_be_caption(value: object) -> bool:
    """Whether a member or a field holds a text, which may be empty, or a list with one."""
    if isinstance(value, list):
        return any(isinstance(text, str) and text.strip() for text in value)
    return isinstance(value, str | bytes | Unread)


def utf8(value: str) -> str:
    """Convert a name in a tar to valid UTF-8 without NUL, as Parquet strings need it."""
    text = value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\0", "?")
