"""One input sample, and the reasons for which a sample cannot be scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class SkipReason(str, Enum):
    """Value of the `status` column of a row; every value but `OK` means the row has no scores."""

    OK = "ok"
    IMAGE_MISSING = "image_missing"
    IMAGE_CORRUPT = "image_corrupt"
    IMAGE_TOO_LARGE = "image_too_large"
    CAPTION_MISSING = "caption_missing"
    CAPTION_NOT_TEXT = "caption_not_text"
    DUPLICATE_KEY = "duplicate_key"
    SAMPLE_TRUNCATED = "sample_truncated"
    ROW_BROKEN = "row_broken"
    EMBEDDING_MISSING = "embedding_missing"
    EMBEDDING_CORRUPT = "embedding_corrupt"


class Member(NamedTuple):
    """Where a member lies in its uncompressed tar: `begin` of its headers, `end` of its padding."""

    extension: str
    begin: int
    end: int


@dataclass(slots=True)
class Sample:
    """A sample as it lies in the shard: raw image bytes, the caption, the json's fields.

    `status` is what could be told without decoding the image; `image` is dropped as soon as it
    has been decoded. `members` is filled on request, in the order of the shard.
    """

    row: int
    key: str
    image: bytes | None = None
    caption: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    status: SkipReason = SkipReason.OK
    error: str | None = None
    members: list[Member] = field(default_factory=list)

    def reject(self, reason: SkipReason, error: str | None = None) -> None:
        """Set the status unless an earlier problem already did."""
        if self.status is SkipReason.OK:
            self.status, self.error = reason, error
