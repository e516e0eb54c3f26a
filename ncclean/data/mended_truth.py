"""What a sample's json says of a caption's noise, after sentences of the caption were left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclean.data.caption_parts import parts_of, sentence_starts
from ncclean.data.samples import TRUTH, noise_of, of_caption

_OF_A_WORD = "hard"
_NOTHING = dict.fromkeys(TRUTH)


def exported_truth(
    fields: Mapping[str, Any], originals: Mapping[int, str], mended: Mapping[int, str]
) -> dict[str, list[Any]]:
    """The truth that a sample has, of each of the exported captions, in their order.

    `originals` are these captions before any was mended, by number. Where one was, what was true
    before is in fields of the same names that begin with `original_`; truth that is one for all
    captions stays as it is otherwise.
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
    """The truth of caption `number` after it was mended; null where it is not known.

    Without its noisy sentence a caption is clean. A noisy sentence that stayed has another number,
    and what is wrong with all of a caption is wrong with the rest. Which sentence a wrong word was
    in is not known.
    """
    truth = {name: of_caption(fields, name, number) for name in TRUTH}
    if not noise_of(fields, number):
        return truth
    sentences, part = _sentences(original), truth["noisy_part"]
    if not isinstance(part, int) or not 0 <= part < len(sentences):
        return _NOTHING if truth["noise_kind"] == _OF_A_WORD else truth
    left = _sentences(mended)
    if sentences[part] in left:
        return {**truth, "noisy_part": left.index(sentences[part])}
    # Of a sentence above the context, a window may have stayed.
    if any(sentence in sentences[part] for sentence in left if sentence not in sentences):
        return _NOTHING
    return {**_NOTHING, "is_noisy": False}


def _sentences(caption: str) -> list[str]:
    return parts_of(caption, sentence_starts(caption))
