"""What thresholds of near-duplicate images find and take wrongly: a table of docs/neighbours.

    python tests/benchmarks neighbours.near_duplicates [--pairs 20_000] [--record FILE.json]

A rendered corpus in which 5 % of the images show the scene of an earlier pair, drawn again with
other positions, sizes and noise. Of 1,000 images that are alone in their scene altered copies are
made, which are compared with the image itself.
"""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from corpora import encoded_images, jpeg, read_embeddings, rendered, samples_of
from ncclean_pipelines.score import Score
from PIL import Image
from records import Row, benchmark

from ncclean.base.config import ScoreOptions
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.models.estimator import Estimator
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.near_duplicates import SAME_IMAGE_COSINE, THRESHOLDS
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.search import find_neighbours
from ncclean.neighbour_search.whitening import Whitening
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder

_DUPLICATES, _ALTERED = 0.05, 1000
_THRESHOLDS = ((True, None), (True, 0.90), (False, 0.96))  # whitened or not; None is the default


def cropped(image: Image.Image) -> bytes:
    """The image without 8 % of its width and height, half on each side."""
    width, height = image.size
    left, top = 0.04 * width, 0.04 * height
    buffer = io.BytesIO()
    image.crop((round(left), round(top), round(width - left), round(height - top))).save(
        buffer, "PNG"
    )
    return buffer.getvalue()


ALTERATIONS: dict[str, Callable[[Image.Image], bytes]] = {
    "JPEG quality 40": lambda image: jpeg(image, 40),
    "cropped by 8 %": cropped,
}


def thresholds(pairs: int = 20_000, seed: int = 1) -> Iterator[Row]:
    """A row for each space and threshold."""
    with tempfile.TemporaryDirectory(prefix="ncclean-near-duplicates-") as name:
        folder = Path(name)
        shards = rendered(folder / "shards", pairs=pairs, duplicates=_DUPLICATES, seed=seed)
        options = ScoreOptions(embeddings=str(folder / "embeddings"))
        Score(
            shards=[str(shards)], out=str(folder / "s.parquet"), model="demo", options=options
        ).run()
        image, _, facts = read_embeddings(folder / "embeddings")
        samples = {sample.metadata["uid"]: sample for sample in samples_of(shards)}
        uids = facts.column("uid").to_pylist()
        scenes = np.array([samples[uid].metadata["duplicate_of"] or uid for uid in uids])
        times = Counter(scenes.tolist())
        is_redrawn = np.array([times[scene] > 1 for scene in scenes])
        rows = np.flatnonzero(~is_redrawn)[:_ALTERED]
        copies = _altered([samples[uids[row]].image for row in rows])
        blocks = embedded_blocks(resolve_embeddings([options.embeddings]), None)
        for whiten, threshold in _THRESHOLDS:
            space = Whitening.fit(image) if whiten else None
            found = find_neighbours(
                blocks, NeighbourOptions(whiten=whiten, image_threshold=threshold),
                ArrayFolder(str(folder / f"work-{whiten}-{threshold}")), InProcess(),
            )  # fmt: skip
            least = THRESHOLDS["image"][whiten] if threshold is None else threshold
            yield {
                "whitened": whiten,
                "threshold": least,
                "is_default": threshold is None,
                **_grouped(found.groups["image"], scenes, is_redrawn),
                "altered": {
                    name: _share_reaching(image[rows], copy, space, least, plain=threshold is None)
                    for name, copy in copies.items()
                },
            }
    return {"redrawn": int(is_redrawn.sum())}


def _grouped(group: np.ndarray, scenes: np.ndarray, is_redrawn: np.ndarray) -> dict[str, float]:
    """Shares of redrawn images that are with another one of their scene; of others in groups."""
    pairs = list(zip(group.tolist(), scenes.tolist(), strict=True))
    sizes, of_scene = Counter(group.tolist()), Counter(pairs)
    together = np.array([of_scene[pair] > 1 for pair in pairs])
    has_company = np.array([sizes[one] > 1 for one in group.tolist()])
    return {
        "redrawn_grouped": float(together[is_redrawn].mean()),
        "others_grouped": float(has_company[~is_redrawn].mean()),
        "others_dropped": float(
            (has_company & (group != np.arange(len(group))))[~is_redrawn].mean()
        ),
    }


def _altered(images: list[bytes]) -> dict[str, np.ndarray]:
    """(n, d) embeddings of the images after each alteration."""
    estimator = Estimator.load("demo", precision="fp32", device="cpu")
    opened = [Image.open(io.BytesIO(data)).convert("RGB") for data in images]
    return {
        name: encoded_images(estimator, map(alter, opened)).numpy()
        for name, alter in ALTERATIONS.items()
    }


def _share_reaching(
    image: np.ndarray, copy: np.ndarray, space: Whitening | None, threshold: float, *, plain: bool
) -> float:
    """Share of the copies whose cosine with the image reaches the threshold.

    With `plain` a high cosine in the model's own space will do as well.
    """
    sides = (image, copy) if space is None else (space.apply(image), space.apply(copy))
    reached = np.einsum("nd,nd->n", *sides) >= threshold
    if plain:
        reached |= np.einsum("nd,nd->n", image, copy) >= SAME_IMAGE_COSINE
    return float(reached.mean())


if __name__ == "__main__":
    benchmark(thresholds, duplicates=_DUPLICATES, altered=_ALTERED, model="demo")
