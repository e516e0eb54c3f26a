"""JPEGs decoded at a smaller scale (`score --draft`), against whole ones, on one core.

Beside the speed stands what the images lose: the mean difference of the pixels, in levels of 255,
and how far the embeddings of `demo` move.
"""

from __future__ import annotations

import torch
from corpora import photographs
from measure import Setting, take_turns
from results import Row
from towers import OPEN_CLIP_DEFAULT

from ncclean.data.decode import ImageDecoder
from ncclean.models.estimator import Estimator
from speed.decode import one_thread

_SIZES = ((512, 512), (640, 480), (1024, 768), (2048, 1536))


def run(setting: Setting) -> list[Row]:
    count = setting.choose(full=100, quick=20)
    estimator = Estimator.load("demo", precision="fp32", device="cpu")
    rows = []
    with one_thread():
        for size in _SIZES:
            images = photographs(count, size, 90)
            decoders = {
                name: ImageDecoder(OPEN_CLIP_DEFAULT, draft=name == "draft")
                for name in ("whole", "draft")
            }
            timings = take_turns(
                {
                    name: lambda decoder=decoder, images=images: decoder.decode_many(images)
                    for name, decoder in decoders.items()
                },
                setting.choose(full=5, quick=3),
            )
            levels, cosine = _losses(images, decoders, estimator)
            name = f"{size[0]}x{size[1]} to 224"
            whole, draft = (timings[kind].best for kind in ("whole", "draft"))
            rows += [
                Row(name=name, value=len(images) / draft, unit="images/s", ratio=whole / draft),
                Row(name=f"{name}: mean difference", value=levels, unit="of 255 levels"),
                Row(name=f"{name}: 1 - cosine of demo's embeddings", value=1 - cosine, unit=""),
            ]
    return rows


def _losses(
    images: list[bytes], decoders: dict[str, ImageDecoder], estimator: Estimator
) -> tuple[float, float]:
    """Mean difference of the pixels, and mean cosine of the embeddings at demo's own size."""
    pixels = {
        name: torch.stack([decoder(data).pixels for data in images]).float()
        for name, decoder in decoders.items()
    }
    levels = (pixels["whole"] - pixels["draft"]).abs().mean()
    embeddings = []
    for draft in (False, True):
        decoder = ImageDecoder(estimator.preprocessing, draft=draft)
        crops = torch.stack([decoder(data).pixels for data in images])
        embeddings.append(estimator.encode_image(crops))
    cosines = (embeddings[0] * embeddings[1]).sum(dim=1)
    return float(levels), float(cosines.mean())
