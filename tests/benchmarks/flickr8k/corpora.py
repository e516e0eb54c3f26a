"""Flickr8k at the size that small CLIPs see, and such a CLIP.

The folder holds `dataset_flickr8k.json` in Karpathy's layout and `images.zip`.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arms import Arm, Training, from_scratch
from corpora import jpeg, once
from ncclean_pipelines.inject_noise import InjectNoise
from PIL import Image

from ncclean.data.options import SourceOptions

JSON = "dataset_flickr8k.json"
SIDE = 64
MODEL_CONFIG = {
    "embed_dim": 128,
    "vision_cfg": {
        "image_size": SIDE,
        "layers": 3,
        "width": 128,
        "head_width": 32,
        "patch_size": 16,
    },
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 2},
}
_START = Arm(name="start")


def training(steps: int, learning_rate: float = 5e-4) -> Training:
    """What all trainings on Flickr8k share."""
    return Training(
        steps=steps,
        batch_size=256,
        learning_rate=learning_rate,
        precision="bf16",
        loader={"captions": "sample"},
    )


def learnt(shards: Path, out: Path, steps: int, seed: int, **more: Any) -> str:
    """Train a small CLIP from random weights; its name."""
    return from_scratch(MODEL_CONFIG, training(steps, 2e-3), _START, shards, out, seed, **more)


def estimator(data: Path, out: Path, steps: int, seed: int) -> str:
    """Train a small CLIP on the clean training split; its name."""
    return learnt(
        data / JSON, out / f"estimator-{seed}", steps, seed, source_options=source(data, out)
    )


def source(data: Path, out: Path, split: tuple[str, ...] = ("train",)) -> SourceOptions:
    """Where the photographs are; they are made smaller once."""

    def make(folder: Path) -> None:
        with zipfile.ZipFile(data / "images.zip") as archive:
            for name in archive.namelist():
                if name.endswith(".jpg"):
                    image = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
                    small = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
                    (folder / Path(name).name).write_bytes(jpeg(small, 95))

    return SourceOptions(image_root=str(once(out / "images", make)), split=split)


def photographs_of(data: Path, *splits: str) -> list[dict[str, Any]]:
    """What the JSON says of the photographs of some splits."""
    listed = json.loads((data / JSON).read_text())["images"]
    return [image for image in listed if image["split"] in splits]


def write_table(pairs: list[Mapping[str, str]], path: Path) -> Path:
    """Write pairs as a table of image files with captions."""
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def captions_in_a_row(data: Path, out: Path, count: int) -> Path:
    """A table of the photographs that no estimator learns, with `count` captions as one."""
    pairs = [
        {
            "uid": image["filename"],
            "file_name": image["filename"],
            "text": " ".join(_sentence(one["raw"]) for one in image["sentences"][:count]),
        }
        for image in photographs_of(data, "val", "test")
    ]
    return write_table(pairs, out / f"{count}.jsonl")


def _sentence(caption: str) -> str:
    text = caption.strip().rstrip(" .")
    return text[:1].upper() + text[1:] + "."


def spoilt(
    table: Path, noise: Mapping[str, float], out: Path, seed: int, options: SourceOptions
) -> Path:
    """The pairs of a table as shards with noise."""
    InjectNoise(
        shards=[str(table)], out=str(out), noise=noise, seed=seed, source_options=options
    ).run()
    return out
