"""The facts of a rendered pair, by the side that shows them.

They come from the json of `ncclean synth`. A disentangled model keeps shared facts in its invariant
halves, and facts of one side in the exclusive half of that side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARED, IMAGE_ONLY, TEXT_ONLY = "shared", "image only", "text only"
# Each fact with the side that shows it. `remark` is which of four a caption carries, or none.
FACTS = {
    "shape": SHARED,
    "colour": SHARED,
    "objects": SHARED,
    "ground": SHARED,
    "watermark": IMAGE_ONLY,
    "grain": IMAGE_ONLY,
    "blur": IMAGE_ONLY,
    "brightness": IMAGE_ONLY,
    "remark": TEXT_ONLY,
    "date": TEXT_ONLY,
    "price": TEXT_ONLY,
}


def scene_facts(metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """The value of each of `FACTS` for a pair, from its json; None if `synth` did not render it."""
    scene, text_only = metadata.get("scene"), metadata.get("text_only")
    try:
        group, image_only = scene["groups"][0], scene["image_only"]  # type: ignore[index]
        facts = {
            "shape": group["shape"],
            "colour": group["colour"],
            "objects": sum(member["count"] for member in scene["groups"]),  # type: ignore[index]
            "ground": scene["background"][1],  # type: ignore[index]
            **{name: image_only[name] for name, side in FACTS.items() if side == IMAGE_ONLY},
            "remark": text_only[0] if text_only else "none",
            "date": "date" in (text_only or ()),
            "price": "price" in (text_only or ()),
        }
    except (KeyError, TypeError, IndexError):
        return None
    return {name: str(value) for name, value in facts.items()}
