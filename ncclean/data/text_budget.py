"""Bounds the text of a shard's samples: no more than its bytes can account for.

The captions and fields of a shard are held until it is finished, its images are not. Text that is
packed, or a json of empty lists, takes a thousand times the room that it has in the file.
"""

from __future__ import annotations

from ncclean.data.samples import Sample, SkipReason

LARGEST_TEXT = 8 << 20  # bytes of one caption or json
LARGEST_PARSED = 16 << 20  # bytes of the fields of a json in memory

_VALUE_BYTES = 80  # of one value of a json, in memory
_CAPTION_BYTES = 500  # of a row in memory, beside its text
_SHARD_BYTES = 256 << 20
_SHARD_CAPTIONS = 20_000
_BYTES_PER_CAPTION = 64


def parsed_size(raw: object) -> int:
    """Estimated memory in bytes of a json once parsed; 0 for anything but bytes."""
    if not isinstance(raw, bytes):
        return 0
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    return len(raw) + _VALUE_BYTES * values


class TextBudget:
    """The text that is left for the samples of a shard of `size` bytes.

    A quarter of a gigabyte and once its size, and beside the first caption of each image 20,000
    and one for every 64 bytes: a shard of images comes nowhere near.
    """

    def __init__(self, size: int) -> None:
        self._bytes = _SHARD_BYTES + size
        self._captions = _SHARD_CAPTIONS + size // _BYTES_PER_CAPTION

    def take(self, sample: Sample, fields: int) -> None:
        """Charge a sample's fields to the memory budget; reject the sample once it is used up."""
        texts = (len(caption.text or "") + _CAPTION_BYTES for caption in sample.captions)
        size, captions = sum(texts) + fields, max(0, len(sample.captions) - 1)
        if size <= self._bytes and captions <= self._captions:
            self._bytes -= size
            self._captions -= captions
            return
        sample.captions, sample.metadata = [], {}
        what = "text" if captions <= self._captions else "captions"
        sample.status = SkipReason.CAPTION_TOO_LARGE
        sample.error = f"the shard has more {what} than its size allows"
