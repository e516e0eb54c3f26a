"""Decide, for scoring, export and injection alike, which members of a shard make a sample.

A sample is the members that share a key. It is finished when its image and caption have been read
and the next key begins; a sample that lacks either waits, in case its members are interleaved with
others. So samples may finish out of order: their row is the order of first appearance. The first
finished sample of a key counts; the others are repeats.

A key ends at the first dot of a name, as in webdataset: `001.depth.png` belongs to `001.jpg`. If
ending it at the last dot gives more images their own caption, it ends there: `shop.de.0001.jpg` and
`shop.de.0001.txt` are one sample, those of `shop.de.0002` another.
"""

from __future__ import annotations

import importlib.util
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ncclean.data.samples import Unread

# The format of phones; Pillow reads it with the extra `heic`.
_HEIC = ("heic", "heif")
READS_HEIC = importlib.util.find_spec("pillow_heif") is not None
IMAGE_EXTENSIONS = frozenset(
    ("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif")
    + (_HEIC if READS_HEIC else ())
)
UNREAD_EXTENSIONS = frozenset(() if READS_HEIC else _HEIC)
HEIC_NOT_READ = "HEIC, which is not read without `pip install 'ncclean[heic]'`"
CAPTION_EXTENSIONS = ("txt", "caption")
JSON_CAPTIONS = ("caption", "text")  # json fields
# webdataset's own: members called __something__ describe the shard, not a sample.
_SHARD_METADATA = re.compile(r"__[^/]*__($|/|\.)")
# How many incomplete samples may wait for members that come later in the shard.
_WAITING_SAMPLES = 8192
_WAITING_BYTES = 256 << 20
LARGEST_TEXT = 8 << 20  # bytes of one caption or json
PARSED_BYTES = 25  # of memory, for each byte of a json, at worst: empty lists
_DEEPEST = 100  # nesting levels of a json
_LATE = -1  # row of a group that seems to be metadata of a finished sample
_NO_ROW = -2  # row of a group that may still split into several samples
_FEW_MEMBERS = 4  # of one key, before checking for a split


class Group(ABC):
    """The members of one sample read so far, by extension."""

    __slots__ = (
        "has_dots", "image_key", "is_cut", "is_interleaved", "is_repeat", "key", "members", "row"
    )  # fmt: skip

    def __init__(self, row: int, key: str, image_key: str | None) -> None:
        self.row, self.key, self.image_key = row, key, image_key
        self.members: dict[str, Any] = {}
        self.has_dots = False  # whether some extension has
        self.is_cut = False  # the shard ends inside one of its members
        self.is_interleaved = False  # members of other samples lie between its own
        self.is_repeat = False  # another sample with this key finished before

    @property
    @abstractmethod
    def size(self) -> int:
        """Return the bytes of all tar members of a sample."""

    @property
    @abstractmethod
    def has_caption(self) -> bool:
        """Check whether a sample's members include a caption, usable or not."""

    @property
    def picture(self) -> str | None:
        """Return the extension of the sample's image."""
        return picture_of(self.members, self.image_key)

    @property
    def is_pair(self) -> bool:
        """Check whether a sample's members include an image and a caption."""
        return self.picture is not None and self.has_caption

    @property
    def may_change(self) -> bool:
        """Check whether later members may give a better image, or a caption for a further image.

        `001.jpg` may come after `001.depth.png`; and if members of other samples interrupted this
        one, `001.edit.txt` may come after `001.edit.jpg`.
        """
        if not self.has_dots or self.image_key is not None:
            return False
        dotted = (name for name in self.members if "." in name and is_image(name))
        return "." in (self.picture or "") or (self.is_interleaved and any(dotted))

    def hand_over(self, extension: str, other: Group, name: str) -> None:
        """Move a member of this sample to another one, under the extension `name`."""
        other.members[name] = self.members[extension]


G = TypeVar("G", bound=Group)


class SampleGroups(Generic[G]):
    """Groups the members of a shard, given in order, into samples.

    Call `open` for each member's sample, then put the member into `current`. `late` holds json
    members that came after their finished sample, by its row, while there is room. `split_samples`
    counts samples whose keys end at the last dot of a name.
    """

    def __init__(self, new_group: Callable[[int, str], G]) -> None:
        self.current: G | None = None
        self.samples = 0
        self.split_samples = 0
        self.late: dict[int, G] = {}
        self._new_group = new_group
        self._rows: dict[str, int] = {}  # key -> row of its sample, once finished
        self._waiting: dict[str, G] = {}
        self._waiting_bytes = 0
        self._late_bytes = 0
        self._held = 0  # bytes of the current sample's members
        self._split_keys: set[str] = set()  # keys by first dot whose members have longer keys

    def open(self, key: str, extension: str, size: int = 0) -> tuple[str, list[G]]:
        """Make the next member's sample current; the member is named as by `sample_member`.

        `size` is how many of its bytes are held. Returns the member's extension in this sample, and
        the completed samples.
        """
        finished: list[G] = []
        group = self.current
        if "." in extension:
            if group is not None and key == group.key:
                self._held += size
                if self._must_split(group):
                    finished += self._split(group)
            if key in self._split_keys:
                stem, _, extension = extension.rpartition(".")
                key = f"{key}.{stem}"
            group = self.current
        if group is None or key != group.key or extension in group.members:
            finished += self.pause()
            self._held = size
            self.current = group = self._resume(key, extension) or self._begin(key, extension)
        if "." in extension:
            group.has_dots = True
        elif group.row == _NO_ROW:
            self._take_row(group)
        return extension, finished

    def pause(self) -> list[G]:
        """Close the current sample, as another key begins; return the completed samples."""
        group, self.current = self.current, None
        return [] if group is None else self._settle(group)

    def cut(self, key: str, extension: str) -> list[G]:
        """Note that the tar ends inside this member; return the completed samples."""
        _, finished = self.open(key, extension)
        if self.current is not None:
            self.current.is_cut = True
        return finished

    def end(self) -> list[G]:
        """Return the samples left at the end of the shard."""
        group, self.current = self.current, None
        finished = [] if group is None else self._settle(group, is_last=True)
        finished += [self._finish(group) for group in self._waiting.values()]
        self._waiting = {}
        return finished

    def _begin(self, key: str, extension: str) -> G:
        if key in self._rows and extension == "json":
            return self._new_group(_LATE, key)  # most likely metadata of a finished sample
        return self._new_group(_NO_ROW, key)

    def _take_row(self, group: G) -> None:
        group.row = self.samples
        self.samples += 1

    def _resume(self, key: str, extension: str) -> G | None:
        """Return the waiting group of a member, unless it already has such a member."""
        group = self._waiting.get(key)
        if group is None or extension in group.members:
            return None
        group.is_interleaved = True
        self._waiting_bytes -= group.size
        return self._waiting.pop(key)

    def _settle(self, group: G, is_last: bool = False) -> list[G]:
        """Finish a complete group, or let it wait for its remaining members."""
        if group.row == _LATE:
            if group.members.keys() == {"json"}:
                self._late_bytes += group.size
                if self._late_bytes <= _WAITING_BYTES:
                    self.late[self._rows[group.key]] = group
                return []
            self._take_row(group)  # more came under the key: a sample of its own after all
        if self._holds_several(group):
            return self._split(group) + (self.end() if is_last else self.pause())
        if is_last or (group.is_pair and not group.may_change):
            return [self._finish(group)]
        finished = []
        if group.key in self._waiting:  # repeated members: the earlier group stops waiting
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
        if group.row == _NO_ROW:
            self._take_row(group)
        if self._split_keys and "." in group.key.rpartition("/")[2]:
            self.split_samples += 1
        group.is_repeat = self._rows.setdefault(group.key, group.row) != group.row
        return group

    def _must_split(self, group: G) -> bool:
        """Check whether a growing group is several samples, or would exhaust memory.

        A tar may have a single key by the first dot. A group is checked whenever its number of
        members has doubled.
        """
        if self._held > _WAITING_BYTES:
            return True
        count = len(group.members)
        if count < _FEW_MEMBERS or count & (count - 1):
            return False
        return self._holds_several(group)

    def _holds_several(self, group: G) -> bool:
        """Check whether the last dot gives more images their own caption than the first."""
        if group.row == _LATE or not group.has_dots:
            return False
        return sum(part.is_pair for part in self._parts(group)) > group.is_pair

    def _parts(self, group: G) -> list[G]:
        """Return a group's samples by the last dot, in the order of their last members."""
        parts: dict[str, G] = {}
        for extension in group.members:
            stem, dot, name = extension.rpartition(".")
            part = parts.pop(stem, None) or self._new_group(_NO_ROW, f"{group.key}{dot}{stem}")
            group.hand_over(extension, part, name)
            parts[stem] = part
        if "" in parts:
            parts[""].row = group.row
        return list(parts.values())

    def _split(self, group: G) -> list[G]:
        """Split a group into several samples, the last of them the current one."""
        self._split_keys.add(group.key)
        *others, self.current = self._parts(group)
        self.current.is_cut = group.is_cut
        return [done for part in others for done in self._settle(part)]


def sample_member(name: str) -> tuple[str, str] | None:
    """Return key and lower-case extension of a member; None if it belongs to no sample."""
    if name.startswith("__") and _SHARD_METADATA.match(name):
        return None
    key, extension = split_name(name)
    return None if key is None else (utf8(key), utf8(extension).lower())


def picture_of(extensions: Collection[str], image_key: str | None = None) -> str | None:
    """Return the extension of a sample's image, from its members in shard order.

    The one named by `image_key`; by default, the first that consists of the key and an image
    extension, rather than another name such as `001.depth.png`.
    """
    if image_key is not None:
        return image_key if image_key in extensions else None
    others = None
    for extension in extensions:
        if extension in IMAGE_EXTENSIONS:
            return extension
        if others is None and is_image(extension):
            others = extension
    return others


def is_image(extension: str) -> bool:
    return extension.rpartition(".")[2] in IMAGE_EXTENSIONS


def is_unread_image(extension: str) -> bool:
    """Check whether a tar member is an image in an unsupported format."""
    return extension.rpartition(".")[2] in UNREAD_EXTENSIONS


def caption_members(picture: str | None) -> tuple[str, ...]:
    """List extensions of members that may hold a sample's caption; the first that exists is read.

    Besides `001.txt`, that may be `001.jpg.txt`, named after the image's whole name.
    """
    return (*CAPTION_EXTENSIONS, *(f"{picture}.{name}" for name in CAPTION_EXTENSIONS))


def is_caption(extension: str) -> bool:
    """Check whether a tar member is a text that may be a caption, whatever its whole name."""
    return extension.rpartition(".")[2] in CAPTION_EXTENSIONS


def parse_json(raw: bytes) -> dict[str, Any]:
    """Return the fields of a json member under lower-case names (LAION writes TEXT and URL).

    Of several that differ in case only, the one written in lower case counts, else the first. A
    broken json, or one that would exhaust memory, loses its fields but not the sample: the caption
    may be beside it.
    """
    written = json_object(raw) or {}
    fields: dict[str, Any] = {}
    for name, value in written.items():
        lower = name.lower()
        if name == lower or (lower not in written and lower not in fields):
            fields[lower] = value
    return fields


def json_object(raw: bytes) -> dict[str, Any] | None:
    """Return the object in a json; None if it is broken, too large, or nested too deep."""
    if len(raw) > LARGEST_TEXT:
        return None
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    may_be_deep = raw.count(b"[") + raw.count(b"{") > _DEEPEST
    is_usable = isinstance(parsed, dict) and not (may_be_deep and _is_deep(parsed))
    return parsed if is_usable else None


def _is_deep(value: object) -> bool:
    """Check whether a parsed json is nested too deep to be written again."""
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
    """Return the caption, or list of captions, under the first name that has one.

    Without a text, returns an empty one or a list of them, only for the rows of its entries; else
    None.
    """
    values = [value for name in names if (value := fields.get(name)) is not None]
    captions = [value for value in values if may_be_caption(value)]
    lists = [value for value in values if isinstance(value, list) and value]
    return next(filter(None, captions), next(iter([*captions, *lists]), None))


def may_be_caption(value: object) -> bool:
    """Check whether a member or field holds a text, possibly empty, or a list with one."""
    if isinstance(value, list):
        return any(isinstance(text, str) and text.strip() for text in value)
    return isinstance(value, str | bytes | Unread)


def identifier(value: object) -> str | None:
    """Return a key or uid as text, None for none; pandas stores integers with gaps as floats."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_one = isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    return utf8(str(value)) if is_one else None


def utf8(value: str) -> str:
    """Convert a name in a tar to valid UTF-8 without NUL, as Parquet strings need it."""
    text = value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\0", "?")


# The rule of webdataset's `base_plus_ext`.
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


def split_name(name: str) -> tuple[str | None, str]:
    """`a/b.c.jpg` -> (`a/b`, `c.jpg`): webdataset's rule. A name without an extension has no key.

    Ordinary names are split without the slower regular expression.
    """
    folder, slash, file = name.rpartition("/")
    stem, dot, extension = file.partition(".")
    if stem and dot and "\n" not in name:
        return folder + slash + stem, extension
    if not dot:
        return None, ""
    match = _KEY_AND_EXTENSION.match(name)
    return (match[1], match[2]) if match else (None, "")


def with_shorter_keys(keys: Iterable[str]) -> set[str]:
    """Return the keys, with those by first dot of members whose key ends at the last one."""
    return {one for key in keys for one in (key, split_name(f"{key}.")[0] or key)}
