"""Embeddings of matched pairs by CLIPs from hardly to well trained, for `real_clip.py`.

    python tests/benchmarks noise.weak_estimators --out FOLDER [--photographs FOLDER]
        [--flickr8k FOLDER]

A small CLIP is trained from random weights and embeds pairs that it never sees, again and again on
its way: FOLDER gets a `rendered-SAMPLES.npz` each time. With `--photographs`, a folder with
CIFAR-10's images as `train/IIIII.jpg` and `labels.parquet` (columns `file`, `split`, `clean`), it
is trained on these instead, and the files are `photographs-SAMPLES.npz`; captions are templates and
synonyms of the class. With `--flickr8k`, a folder as `flickr8k.study` takes it, it is trained on
the training photographs with each of their captions; the files are `flickr8k-SAMPLES.npz`, of 2,000
others with one caption, and `flickr8k-five-SAMPLES.npz`, with five in a row. With `--bundled`
nothing is trained: the two bundled estimators embed rendered pairs, and the files are `bundled-
demo.npz` and `bundled-demo-noisy.npz`.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import math
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import open_clip
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from ncclean_pipelines.score import Score
from open_clip.model import CLIP
from PIL import Image
from repair import train_demo

from ncclean.base.config import ScoreOptions
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.models.text_tower import encode_text, token_lengths

HELD_OUT = 8_000
_SIDE = 64  # of Flickr8k's photographs
_BATCH = 128
TEMPLATES = (
    "a photo of a {}",
    "{}",
    "a small picture of a {}",
    "a {} in the photograph",
    "this is a {}",
    "blurry photo of one {}",
    "my {}",
)
CLASS_NAMES = {
    "airplane": ("airplane", "plane", "jet", "aircraft"),
    "automobile": ("automobile", "car", "motor car", "sedan"),
    "bird": ("bird", "small bird", "feathered animal"),
    "cat": ("cat", "kitten", "house cat"),
    "deer": ("deer", "stag", "doe"),
    "dog": ("dog", "puppy", "hound"),
    "frog": ("frog", "toad", "tree frog"),
    "horse": ("horse", "pony", "mare"),
    "ship": ("ship", "boat", "vessel"),
    "truck": ("truck", "lorry", "pickup truck"),
}


@dataclass
class World:
    """images (N, 3, H, W) uint8, tokens (N, L); the last `held_out` are never trained on.

    `others` are further captions of these, by the name of their file.
    """

    name: str
    images: torch.Tensor
    tokens: torch.Tensor
    patch: int
    samples: Sequence[int]  # trained on when embeddings are written
    held_out: int = HELD_OUT
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)


def rendered(workers: int) -> World:
    """Scenes of ncclean's own."""
    data = train_demo.render_training_set(5, 40_000, workers)
    return World(
        "rendered", data.images, data.tokens[:, 0].contiguous(), 8, (8_000, 16_000, 24_000, 64_000)
    )


def photographs(folder: Path) -> World:
    """CIFAR-10 from a folder, or from `images.zip` in it, with captions of the true classes."""
    rows = pq.read_table(folder / "labels.parquet").to_pylist()
    rows = [row for row in rows if row["split"] == "train"]
    rng = np.random.default_rng(0)
    captions = [
        TEMPLATES[rng.integers(len(TEMPLATES))].format(rng.choice(CLASS_NAMES[row["clean"]]))
        for row in rows
    ]
    archive = folder / "images.zip"
    if archive.exists():
        with zipfile.ZipFile(archive) as opened:
            images = [_pixels(opened.read(row["file"])) for row in rows]
    else:
        images = [_pixels((folder / row["file"]).read_bytes()) for row in rows]
    tokens = open_clip.tokenizer.SimpleTokenizer()(captions)
    longest = int(token_lengths(tokens).max())
    return World(
        "photographs",
        torch.from_numpy(np.stack(images)),
        tokens[:, :longest],
        4,
        (8_000, 32_000, 128_000),
    )


def flickr8k(folder: Path) -> World:
    """Flickr8k: photographs by each of their captions; the last 2,000 by the first one."""
    listed = json.loads((folder / "dataset_flickr8k.json").read_text())["images"]
    with zipfile.ZipFile(folder / "images.zip") as archive:
        names = {Path(name).name: name for name in archive.namelist()}
        listed = [image for image in listed if image["filename"] in names]
        listed.sort(key=lambda image: image["split"] != "train")
        pixels = [_pixels(archive.read(names[one["filename"]]), _SIDE) for one in listed]
    captions = [[one["raw"] for one in image["sentences"][:5]] for image in listed]
    trained = sum(image["split"] == "train" for image in listed)
    pairs = [(row, text) for row in range(trained) for text in captions[row]]
    pairs += [(row, captions[row][0]) for row in range(trained, len(listed))]
    tokenizer = open_clip.tokenizer.SimpleTokenizer(context_length=32)
    images = torch.from_numpy(np.stack(pixels))
    return World(
        "flickr8k",
        images[[row for row, _ in pairs]],
        tokenizer([text for _, text in pairs]),
        16,
        (8_000, 16_000, 32_000),
        held_out=len(listed) - trained,
        others={"flickr8k-five": tokenizer([" ".join(five) for five in captions[trained:]])},
    )


def train(world: World, out: Path, seed: int) -> None:
    """AdamW at a constant rate; writes the embeddings of the held-out pairs at each count."""
    torch.manual_seed(seed)
    config = copy.deepcopy(train_demo.MODEL_CONFIG)
    config["vision_cfg"] |= {"image_size": world.images.shape[-1], "patch_size": world.patch}
    model = CLIP(**config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    usable = len(world.images) - world.held_out
    picks = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for seen in range(0, world.samples[-1] + _BATCH, _BATCH):
        for at in world.samples:
            if seen - _BATCH < at <= seen:
                held_out = {world.name: world.tokens[-world.held_out :], **world.others}
                for name, tokens in held_out.items():
                    write(model, world, tokens, out / f"{name}-{at:06}.npz")
        if len(order) < _BATCH:
            order = torch.randperm(usable, generator=picks)
        index, order = order[:_BATCH], order[_BATCH:]
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, (seen + _BATCH) / 4000)
        image = model.encode_image(train_demo.normalized(world.images[index]), normalize=True)
        text = F.normalize(encode_text(model, world.tokens[index]), dim=-1)
        logits = model.logit_scale.exp() * image @ text.T
        target = torch.arange(_BATCH)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))


@torch.no_grad()
def write(model: CLIP, world: World, tokens: torch.Tensor, file: Path) -> None:
    """Embeddings of the held-out pairs, and how well they tell matched from permuted."""
    model.eval()
    images = world.images[-world.held_out :]
    image = torch.cat(
        [
            model.encode_image(train_demo.normalized(part), normalize=True)
            for part in images.split(256)
        ]
    )
    text = torch.cat([encode_text(model, part) for part in tokens.split(256)])
    own, others = (image * text).sum(1), (image * text.roll(1, 0)).sum(1)
    ranks = torch.cat([own, others]).argsort().argsort().double()
    auroc = (ranks[: len(own)].mean() - (len(own) - 1) / 2) / len(own)
    np.savez(file, image=image.half().numpy(), text=text.half().numpy())
    print(json.dumps({"file": file.name, "auroc": round(float(auroc), 4)}), flush=True)
    model.train()


def write_bundled(out: Path, seed: int) -> None:
    """Rendered pairs as both bundled estimators embed them."""
    with tempfile.TemporaryDirectory(prefix="ncclean-bundled-") as scratch:
        shards = Path(scratch) / "shards"
        write_corpus(shards, CorpusOptions(pairs=HELD_OUT, noise={}, duplicates=0.0, seed=seed))
        for model in ("demo", "demo-noisy"):
            folder = Path(scratch) / model
            Score(
                shards=[str(shards)], out=f"{folder}.parquet", model=model, pretrained=None,
                shift=0.2, precision="fp32", options=ScoreOptions(embeddings=str(folder)),
            ).run()  # fmt: skip
            image, text = (
                np.concatenate([np.load(file) for file in sorted((folder / side).iterdir())])
                for side in ("img_emb", "text_emb")
            )
            np.savez(out / f"bundled-{model}.npz", image=image, text=text)


def _pixels(data: bytes, side: int | None = None) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        image = image.convert("RGB")
        if side is not None:
            image = image.resize((side, side), Image.Resampling.BICUBIC)
        return np.asarray(image).transpose(2, 0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photographs", type=Path, metavar="FOLDER")
    parser.add_argument("--flickr8k", type=Path, metavar="FOLDER")
    parser.add_argument("--bundled", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.bundled:
        write_bundled(arguments.out, arguments.seed)
        return
    if arguments.photographs is not None:
        world = photographs(arguments.photographs)
    elif arguments.flickr8k is not None:
        world = flickr8k(arguments.flickr8k)
    else:
        world = rendered(arguments.workers)
    train(world, arguments.out, arguments.seed)


if __name__ == "__main__":
    main()
