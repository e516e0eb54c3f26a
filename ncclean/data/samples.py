"""Describe one input sample, and the reasons why a sample cannot be scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Union

if TYPE_CHECKING:  # code that names an option needs no tar
    from ncclean.data.tar_walk import TarMember

# Fields of a sample that may be lists, with a value for each caption.
TRUTH = ("is_noisy", "noise_kind", "noisy_part")
# Names of members or fields that hold captions; None for the usual ones.
CaptionKeys = Union[str, Sequence[str], None]  # noqa: UP007  an alias is made when it is run
_MOST_NAMES = 20  # of further members: a video's frames each have a name
_LONGEST_NAME = 40  # characters
OTHER_NAMES = "other names"


class SkipReason(str, Enum):
    """Value of the `status` column of a row; every value but `OK` means the row has no scores."""

    OK = "ok"
    IMAGE_MISSING = "image_missing"
    IMAGE_CORRUPT = "image_corrupt"
    IMAGE_TOO_LARGE = "image_too_large"
    CAPTION_MISSING = "caption_missing"
    CAPTION_NOT_TEXT = "caption_not_text"
    CAPTION_TOO_LARGE = "caption_too_large"
    DUPLICATE_KEY = "duplicate_key"
    SAMPLE_TRUNCATED = "sample_truncated"
    ROW_BROKEN = "row_broken"
    EMBEDDING_MISSING = "embedding_missing"
    EMBEDDING_CORRUPT = "embedding_corrupt"


OF_CAPTIONS = (
    SkipReason.CAPTION_MISSING,
    SkipReason.CAPTION_NOT_TEXT,
    SkipReason.CAPTION_TOO_LARGE,
)


class Place(NamedTuple):
    """The position of a sample in its shard, as far as its layout can tell.

    `image_path` is the file of the image, as the source names it, and `image_size` its bytes. In an
    uncompressed tar, the image is `image_size` bytes from `image_offset` on; the `sample_size`
    bytes from `sample_offset` on are exactly all members of the sample, headers and padding
    included.
    """

    image_path: str | None = None
    image_offset: int | None = None
    image_size: int | None = None
    sample_offset: int | None = None
    sample_size: int | None = None

    @classmethod
    def of(cls, path: Any, *numbers: Any) -> Place:
        """Return a sample's place from the values of a table's row; None for other types.

        The table may be untrusted and the numbers are unchecked: reading at a place verifies what
        is there.
        """
        is_place = isinstance(path, str | None) and all(isinstance(n, int | None) for n in numbers)
        return cls(path, *numbers) if is_place else NO_PLACE


NO_PLACE = Place()


@dataclass
class FurtherMembers:
    """Counts, by name, of a shard's images and captions that belong to no row.

    Names are extensions such as `depth.png`, or columns; from the twenty-first on, names, as well
    as long or unprintable ones, are counted together. `names` counts image files found under
    another name than in a table, by what differs; `split_keys` samples of tars whose keys end at
    the last dot, see `ncclean.data.sample_groups`; `caption_lines` text files of several lines that
    are one caption; and `turned` images rotated by EXIF.
    """

    # Fields by their name in records.
    RECORDED: ClassVar[Mapping[str, str]] = {
        "further_images": "images",
        "further_captions": "captions",
        "other_names": "names",
        "split_keys": "split_keys",
        "caption_lines": "caption_lines",
        "turned": "turned",
    }

    images: Counter[str] = field(default_factory=Counter)
    captions: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    split_keys: int = 0
    caption_lines: int = 0
    turned: int = 0

    def add(self, counts: Counter[str], name: str, count: int = 1) -> None:
        """Count a member in `images` or in `captions`, by its name, which is not trusted."""
        name = name if name.isprintable() and len(name) <= _LONGEST_NAME else OTHER_NAMES
        counts[name if name in counts or len(counts) < _MOST_NAMES else OTHER_NAMES] += count

    def __iadd__(self, other: FurtherMembers) -> FurtherMembers:
        for field_name in self.RECORDED.values():
            mine, theirs = getattr(self, field_name), getattr(other, field_name)
            if isinstance(mine, int):
                setattr(self, field_name, mine + theirs)
                continue
            for name, count in theirs.items():
                self.add(mine, name, count)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the counts as fields of a record; zeros are omitted."""
        counts = {name: getattr(self, field_name) for name, field_name in self.RECORDED.items()}
        return {
            name: count if isinstance(count, int) else dict(count)
            for name, count in counts.items()
            if count
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> FurtherMembers:
        """Return the counts from a record's fields written by `to_json`."""
        further = cls()
        for name, field_name in cls.RECORDED.items():
            if name in fields:
                kind = type(getattr(further, field_name))  # an int, or a Counter
                setattr(further, field_name, kind(fields[name]))
        return further


@dataclass(frozen=True, slots=True)
class Unread:
    """Stands for content that was not read: the status that its sample gets, and the reason."""

    reason: SkipReason
    what: str


@dataclass(slots=True)
class Caption:
    """One caption of an image, or why there is none.

    `key` is the requested name, None for a caption in the usual place. `number` is its index among
    the captions that the sample may have: each list entry counts, and a name counts even if nothing
    is there.
    """

    number: int = 0
    key: str | None = None
    text: str | None = None
    status: SkipReason = SkipReason.OK
    error: str | None = None


@dataclass(slots=True)
class Sample:
    """A sample as stored in the shard: raw image bytes, its captions, the json's fields.

    `status` is known without decoding the image; a sample without a usable caption has the status
    of its first one. `image` is dropped as soon as it has been decoded. `members` are those of a
    tar by extension, in shard order, and `picture` is the extension of its image. `rows`, on
    request, are the table rows of the sample, with their `row_numbers` in the unit, or the object
    of its json. `alike` are the keys of following samples that differ only in row and key, if
    requested together. `further_images` are the extensions or columns of other images.
    """

    row: int
    key: str
    image: bytes | None = None
    captions: list[Caption] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    status: SkipReason = SkipReason.OK
    error: str | None = None
    place: Place = NO_PLACE
    members: dict[str, TarMember] = field(default_factory=dict)
    picture: str | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    row_numbers: list[int] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    further_images: list[str] = field(default_factory=list)

    @property
    def caption(self) -> str | None:
        """Return the first usable caption of the sample."""
        return next((caption.text for caption in self.captions if caption.text is not None), None)

    def reject(self, reason: SkipReason, error: str | None = None) -> None:
        """Set the reason why the sample cannot be scored, unless an earlier one is set."""
        if self.status is SkipReason.OK:
            self.status, self.error = reason, error


def of_caption(metadata: Mapping[str, Any], name: str, number: int) -> Any:
    """Return a field of a sample, or its value for one caption if it is a list; None if missing."""
    value = metadata.get(name)
    if isinstance(value, list):
        return value[number] if number < len(value) else None
    return value


def noise_of(metadata: Mapping[str, Any], number: int) -> bool | None:
    """Return whether a sample's ground truth calls a caption noisy; None if it does not say.

    Text tables write `true`, `True` or `1`.
    """
    value = of_caption(metadata, "is_noisy", number)
    if isinstance(value, str):
        value = {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None
