"""What thresholds of near-duplicate images find and take wrongly: a table of docs/neighbours.

    python tests/benchmarks neighbours.near_duplicates [--pairs 20_000] [--record FILE.json]

A rendered corpus in which 5 % of the images show the scene of an earlier pair, drawn again with
other positions, sizes and noise. Of 1,000 images that are alone in their scene altered copies are
made, which are compared with the image itself.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ncclean_pipelines.score import Score
from PIL import Image
from records import make_record, write_record

from ncclean.base.config import ScoreOptions
from ncclean.data.decode import ImageDecoder
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.data.synthetic.corpus import CorpusOptions, write_corpus
from ncclean.models.estimator import Estimator
from ncclean.neighbour_search.blocks import embedded_blocks
from ncclean.neighbour_search.near_duplicates import SAME_IMAGE_COSINE, THRESHOLDS
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.neighbour_search.search import find_neighbours
from ncclean.neighbour_search.whitening import Whitening
from ncclean.runners.runner import InProcess
from ncclean.storage.array_files import ArrayFolder

_DUPLICATES, _ALTERED = 0.05, 1000
_THRESHOLDS = {True: (0.70, 0.76, None, 0.85, 0.90), False: (0.92, 0.94, 0.96, 0.98)}


def compressed(image: Image.Image) -> Image.Image:
    data = io.BytesIO()
    image.save(data, "JPEG", quality=40)
    return Image.open(data)


def scaled(image: Image.Image) -> Image.Image:
    return image.resize([max(1, round(0.7 * side)) for side in image.size])


def cropped(share: float) -> Callable[[Image.Image], Image.Image]:
    """Cut `share` of the width and the height off, half on each side."""

    def crop(image: Image.Image) -> Image.Image:
        width, height = image.size
        left, top = share * width / 2, share * height / 2
        return image.crop((round(left), round(top), round(width - left), round(height - top)))

    return crop


ALTERATIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG quality 40": compressed,
    "scaled to 70 %": scaled,
    "cropped by 3 %": cropped(0.03),
    "cropped by 8 %": cropped(0.08),
}


def measure(folder: Path, pairs: int, seed: int) -> dict[str, Any]:
    """A row for each space and threshold."""
    shards = folder / "shards"
    write_corpus(shards, CorpusOptions(pairs=pairs, duplicates=_DUPLICATES, seed=seed))
    options = ScoreOptions(embeddings=str(folder / "embeddings"))
    Score(shards=[str(shards)], out=str(folder / "s.parquet"), model="demo", options=options).run()
    blocks = embedded_blocks(resolve_embeddings([options.embeddings]), None)
    read = [block.read() for block in blocks]
    image = np.concatenate([one.image for one in read])
    uids = [uid for one in read for uid in one.facts.column("uid").to_pylist()]
    members = {facts["uid"]: (facts, data) for facts, data in _samples(shards)}
    shown = np.array([members[uid][0]["duplicate_of"] or uid for uid in uids])
    times = Counter(shown.tolist())
    is_redrawn = np.array([times[scene] > 1 for scene in shown])
    altered = np.flatnonzero(~is_redrawn)[:_ALTERED]
    copies = _altered([members[uids[row]][1] for row in altered])
    rows = []
    for whiten, thresholds in _THRESHOLDS.items():
        space = Whitening.fit(image.astype(np.float32)) if whiten else None
        for threshold in thresholds:
            found = find_neighbours(
                blocks, NeighbourOptions(whiten=whiten, image_threshold=threshold),
                ArrayFolder(str(folder / f"work-{whiten}-{threshold}")), InProcess(),
            )  # fmt: skip
            least = THRESHOLDS["image"][whiten] if threshold is None else threshold
            of_copies = {
                name: _share_reaching(image[altered], copy, space, least, plain=threshold is None)
                for name, copy in copies.items()
            }
            rows.append({
                "whitened": whiten,
                "threshold": least,
                "is_default": threshold is None,
                **_grouped(found.groups["image"], shown, is_redrawn),
                "altered": of_copies,
            })  # fmt: skip
            print(rows[-1], flush=True)
    return {"rows": rows, "redrawn": int(is_redrawn.sum())}


def _grouped(group: np.ndarray, shown: np.ndarray, is_redrawn: np.ndarray) -> dict[str, float]:
    """Shares of redrawn images that are with another one of their scene; of others in groups."""
    sizes = Counter(group.tolist())
    of_scene = Counter(zip(group.tolist(), shown.tolist(), strict=True))
    together = np.array(
        [of_scene[pair] > 1 for pair in zip(group.tolist(), shown.tolist(), strict=True)]
    )
    has_company = np.array([sizes[one] > 1 for one in group.tolist()])
    is_first = group == np.arange(len(group))
    return {
        "redrawn_grouped": float(together[is_redrawn].mean()),
        "others_grouped": float(has_company[~is_redrawn].mean()),
        "others_dropped": float((has_company & ~is_first)[~is_redrawn].mean()),
    }


def _altered(images: list[bytes]) -> dict[str, np.ndarray]:
    """(n, d) float32 embeddings of the images after each alteration."""
    estimator = Estimator.load("demo", precision="fp32", device="cpu")
    decoder = ImageDecoder(estimator.preprocessing)
    found = {}
    for name, alter in ALTERATIONS.items():
        pixels = []
        for data in images:
            changed = io.BytesIO()
            alter(Image.open(io.BytesIO(data)).convert("RGB")).save(changed, "PNG")
            pixels.append(decoder(changed.getvalue()).pixels)
        vectors = [estimator.encode_image(batch) for batch in torch.stack(pixels).split(256)]
        found[name] = torch.nn.functional.normalize(torch.cat(vectors).float(), dim=1).numpy()
    return found


def _share_reaching(
    image: np.ndarray, copy: np.ndarray, space: Whitening | None, threshold: float, *, plain: bool
) -> float:
    """Share of the copies whose cosine with the image reaches the threshold.

    With `plain` a cosine in the model's own space that is high enough will do, as in a search
    without a given threshold.
    """
    image = image.astype(np.float32)
    sides = (image, copy) if space is None else (space.apply(image), space.apply(copy))
    reached = np.einsum("nd,nd->n", *sides) >= threshold
    if plain:
        reached |= np.einsum("nd,nd->n", image, copy) >= SAME_IMAGE_COSINE
    return float(reached.mean())


def _samples(shards: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The json and the image of each sample."""
    for shard in sorted(shards.glob("*.tar")):
        data = b""
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                if member.name.endswith(".json"):
                    yield json.loads(file.read()), data
                elif not member.name.endswith(".txt"):
                    data = file.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ncclean-near-duplicates-") as name:
        measured = measure(Path(name), arguments.pairs, arguments.seed)
    if arguments.record is not None:
        settings = {"pairs": arguments.pairs, "duplicates": _DUPLICATES, "model": "demo"}
        settings |= {"altered": _ALTERED}
        rows = measured.pop("rows")
        record = make_record(rows, settings=settings, seeds=[arguments.seed], **measured)
        write_record(arguments.record, record)


if __name__ == "__main__":
    main()
