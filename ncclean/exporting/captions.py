"""The captions of an exported sample: those kept, their replacements, and the originals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.member_samples import caption_keys
from ncclean.data.nested_fields import field_at, put_at
from ncclean.data.samples import TRUTH, CaptionKeys, Sample, noise_of, of_caption
from ncclean.exporting.choices import Choice

_OF_A_WORD = "hard"
_NOTHING = dict.fromkeys(TRUTH)


@dataclass(frozen=True)
class ExportedCaptions:
    """The captions with which a sample is exported.

    `texts` are the final ones by number, the best first, and `originals` the same before any was
    mended. `others` are the sample's captions that are not kept. `is_only` tells that the sample
    has one caption, whatever its number.
    """

    texts: Mapping[int, str]
    originals: Mapping[int, str]
    others: tuple[str, ...] = ()
    is_only: bool = False

    @property
    def best(self) -> str:
        """The best caption, for readers of only one."""
        return next(iter(self.texts.values()))

    @property
    def mended(self) -> dict[int, str]:
        """The texts that replace captions, by number."""
        return {n: text for n, text in self.texts.items() if text != self.originals[n]}

    def fields(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the caption fields of a sample's json: best, kept, other and original captions.

        `metadata` are the sample's own fields: ground truth stated per caption is reordered like
        the kept captions, and updated for mended ones; the previous truth goes to `original_`
        fields.
        """
        mended = self.mended
        before: dict[str, Any] = {}
        if next(iter(self.texts)) in mended:
            before["original_caption"] = next(iter(self.originals.values()))
        truth = exported_truth(metadata, self.originals, mended)
        if self.is_only:
            return {"caption": self.best, **before, **{n: of_all[0] for n, of_all in truth.items()}}
        if mended:
            before["original_captions"] = [*self.originals.values()]
        kept, others = [*self.texts.values()], [*self.others]
        return {"caption": kept[0], "captions": kept, "other_captions": others, **before, **truth}

    def record(
        self, record: dict[str, Any], metadata: Mapping[str, Any], caption_key: CaptionKeys
    ) -> dict[str, Any]:
        """Return a json object with these captions; an only one also replaces its source field."""
        if self.is_only and self.mended:
            names = caption_keys(caption_key)
            for path in (*(name for name in list(record) if name.lower() in names), *names):
                if isinstance(field_at(record, path), str):
                    put_at(record, path, self.best)
        return {**record, **self.fields(metadata)}


def exported_captions(sample: Sample, choice: Choice) -> ExportedCaptions | None:
    """Return the captions to export of a selected sample; None if a selected one is missing."""
    texts = {caption.number: caption.text for caption in sample.captions if caption.text}
    if choice.numbers is None:
        if not texts:
            return None
        number, original = next(iter(texts.items()))
        text = next(iter(choice.mended.values()), original)
        return ExportedCaptions({number: text}, {number: original}, is_only=True)
    if not texts.keys() >= set(choice.numbers):
        return None
    originals = {number: texts.pop(number) for number in choice.numbers}
    kept = {number: choice.mended.get(number, text) for number, text in originals.items()}
    return ExportedCaptions(kept, originals, tuple(texts.values()))


def exported_truth(
    fields: Mapping[str, Any], originals: Mapping[int, str], mended: Mapping[int, str]
) -> dict[str, list[Any]]:
    """Return the ground truth (such as `is_noisy`) of each exported caption of a sample, in order.

    `originals` are these captions before any was mended, by number. If one was, the previous truth
    goes to fields prefixed by `original_`; otherwise truth stated once for all captions is
    unchanged.
    """
    names = [n for n in TRUTH if isinstance(fields.get(n), list) or (n in fields and mended)]
    before = [{n: of_caption(fields, n, number) for n in TRUTH} for number in originals]
    after = [
        truth_after(fields, number, original, mended[number]) if number in mended else truth
        for (number, original), truth in zip(originals.items(), before, strict=True)
    ]
    truth = {name: [one[name] for one in after] for name in names}
    if mended:
        truth |= {f"original_{name}": [one[name] for one in before] for name in names}
    return truth


def truth_after(
    fields: Mapping[str, Any], number: int, original: str, mended: str
) -> dict[str, Any]:
    """Return the ground truth of a caption after it was mended; null if unknown.

    Nothing is known of a text that is not a part of the original. Without its noisy sentence a
    caption is clean. A remaining noisy sentence has another number, and noise in the whole caption
    affects the rest. Which sentence had a wrong word is unknown.
    """
    truth = {name: of_caption(fields, name, number) for name in TRUTH}
    left = _sentences(mended)
    if any(sentence not in original for sentence in left):
        return _NOTHING
    if not noise_of(fields, number):
        return truth
    sentences, part = _sentences(original), truth["noisy_part"]
    if not isinstance(part, int) or not 0 <= part < len(sentences):
        return _NOTHING if truth["noise_kind"] == _OF_A_WORD else truth
    if sentences[part] in left:
        return {**truth, "noisy_part": left.index(sentences[part])}
    # A window of a sentence longer than the context may remain.
    if any(sentence in sentences[part] for sentence in left if sentence not in sentences):
        return _NOTHING
    return {**_NOTHING, "is_noisy": False}


def _sentences(caption: str) -> list[str]:
    return parts_of(caption, sentence_starts(caption))
