"""Which of a sample's captions an exported shard has, where images have several."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclean.data.member_samples import Contents, caption_keys, take_captions
from ncclean.data.mended_truth import exported_truth
from ncclean.data.nested_fields import field_at, put_at
from ncclean.data.sample_groups import CAPTION_EXTENSIONS
from ncclean.data.samples import Caption, CaptionKeys, Sample


@dataclass(frozen=True)
class KeptCaptions:
    """Numbers of the captions that the selection keeps of each key, the best first.

    Samples that are not in `numbers` have one caption. `mended` has the texts that replace
    captions, by key and number. `caption_key` are the names under which the scored captions lie.
    """

    numbers: Mapping[str, Sequence[int]]
    mended: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    caption_key: CaptionKeys = None

    def __contains__(self, key: str) -> bool:
        """Whether the captions of a sample do not stay as they are."""
        return key in self.numbers or key in self.mended

    def is_read(self, extension: str) -> bool:
        """Whether a tar member of this name may hold captions."""
        return extension in (*CAPTION_EXTENSIONS, "json", *caption_keys(self.caption_key))

    def of_sample(
        self, key: str, captions: Sequence[Caption], fields: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The caption fields of an exported sample: the best, all kept ones, and the others.

        Where a caption was mended, the one before as well. `fields` are those of the sample: truth
        that it has for each caption follows the kept ones, and says what is true of mended ones;
        what was true before is in `original_` fields. None if the sample lacks one that was
        selected.
        """
        texts = {caption.number: caption.text for caption in captions if caption.text is not None}
        mended, numbers = self.mended.get(key, {}), self.numbers.get(key)
        if numbers is None:  # the only caption, whatever its number
            if not texts:
                return None
            changed = next(iter(mended.values()))
            number, original = next(iter(texts.items()))
            truth = exported_truth(fields, {number: original}, {number: changed})
            only = {name: values[0] for name, values in truth.items()}
            return {"caption": changed, "original_caption": original, **only}
        if not texts.keys() >= set(numbers):
            return None
        originals = [texts.pop(number) for number in numbers]
        kept = [mended.get(n, text) for n, text in zip(numbers, originals, strict=True)]
        before: dict[str, Any] = {}
        if kept[0] != originals[0]:
            before["original_caption"] = originals[0]
        if kept != originals:
            before["original_captions"] = originals
        truth = exported_truth(fields, dict(zip(numbers, originals, strict=True)), mended)
        others = list(texts.values())
        return {"caption": kept[0], "captions": kept, "other_captions": others, **before, **truth}

    def mend_in(self, key: str, fields: dict[str, Any]) -> None:
        """Replace a sample's only caption where it was read from by name, if it was mended."""
        if key in self.numbers or key not in self.mended:
            return
        text = next(iter(self.mended[key].values()))
        names = caption_keys(self.caption_key)
        for path in (*(name for name in list(fields) if name.lower() in names), *names):
            if isinstance(field_at(fields, path), str):
                put_at(fields, path, text)

    def members_of(self, key: str, members: Container[str]) -> list[str]:
        """Extensions of the members of an exported sample that hold its caption."""
        is_only = key not in self.numbers
        names = (*CAPTION_EXTENSIONS, *(caption_keys(self.caption_key) if is_only else ()))
        return [name for name in dict.fromkeys(names) if name in members] or ["txt"]

    def of_members(self, key: str, members: Mapping[str, bytes]) -> dict[str, Any] | None:
        """The caption fields of a sample, from the contents of its members by extension."""
        contents = Contents(0, key, self.caption_key)
        contents.members = dict(members)
        sample = Sample(row=0, key=key)
        take_captions(sample, contents.captions)
        return self.of_sample(key, sample.captions, contents.metadata)
