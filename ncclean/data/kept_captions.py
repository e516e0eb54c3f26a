"""Which of a sample's captions an exported shard has, where images have several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclean.data.member_samples import Contents, caption_keys, take_captions
from ncclean.data.sample_groups import CAPTION_EXTENSIONS
from ncclean.data.samples import TRUTH, Caption, CaptionKeys, Sample, of_caption


@dataclass(frozen=True)
class KeptCaptions:
    """By key, the numbers of the captions that the selection keeps, the best first.

    `caption_key` are the names under which the scored captions lie.
    """

    numbers: Mapping[str, Sequence[int]]
    caption_key: CaptionKeys = None

    def is_read(self, extension: str) -> bool:
        """Whether a tar member of this name may hold captions."""
        return extension in (*CAPTION_EXTENSIONS, "json", *caption_keys(self.caption_key))

    def of_sample(
        self, key: str, captions: Sequence[Caption], fields: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The caption fields of an exported sample: the best, all kept ones, and the others.

        `fields` are those of the sample: truth that it has for each caption follows the kept ones.
        None if the sample lacks one that was selected.
        """
        texts = {caption.number: caption.text for caption in captions if caption.text is not None}
        numbers = self.numbers[key]
        if not texts.keys() >= set(numbers):
            return None
        kept = [texts.pop(number) for number in numbers]
        truth = {
            name: [of_caption(fields, name, number) for number in numbers]
            for name in TRUTH
            if isinstance(fields.get(name), list)
        }
        others = list(texts.values())
        return {"caption": kept[0], "captions": kept, "other_captions": others, **truth}

    def of_members(self, key: str, members: Mapping[str, bytes]) -> dict[str, Any] | None:
        """The caption fields of a sample, from the contents of its members by extension."""
        contents = Contents(0, key, self.caption_key)
        contents.members = dict(members)
        sample = Sample(row=0, key=key)
        take_captions(sample, contents.captions)
        return self.of_sample(key, sample.captions, contents.metadata)
