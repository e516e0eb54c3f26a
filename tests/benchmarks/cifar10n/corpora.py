"""CIFAR-10N as image-text corpora: captions from the labels that people gave the photographs.

CIFAR-10N (Wei et al., ICLR 2022) has labels of CIFAR-10's training images by Mechanical Turk:
`worse` is wrong for 40 % of them, `random1` for 17 % and `aggregate`, a vote, for 9 %. People
confuse what looks alike, cats and dogs more often than cats and ships.

The folder holds `labels.parquet` (columns `file`, `split`, `clean`, `worse`, `random1`,
`aggregate`) and the images at `file`, or an `images.zip` with them; `file` is `train/IIIII.jpg` in
CIFAR-10's order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from arms import Arm, Training, from_scratch
from corpora import image_reader, once, write_shard
from repair import train_demo

LABELS = ("worse", "random1", "aggregate")
SPLITS = ("train", "test")
_SHARD_PAIRS = 5_000
Row = Mapping[str, str]
# The demo model's towers, at 32 pixels in patches of 4.
MODEL_CONFIG = {
    **train_demo.MODEL_CONFIG,
    "vision_cfg": {**train_demo.MODEL_CONFIG["vision_cfg"], "image_size": 32, "patch_size": 4},
}
_TRAINING = Training(steps=None, batch_size=128, learning_rate=1e-3, weight_decay=0.05)
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


@dataclass(frozen=True)
class Photographs:
    """Images to train an estimator on, those to score, and those that no model learns.

    `learnt` are half of the training images and half of the test images, `scored` the other
    training images, `held_out` the other test images.
    """

    learnt: list[Row]
    scored: list[Row]
    held_out: list[Row]

    @classmethod
    def read(cls, folder: Path, seed: int) -> Photographs:
        """Divide the photographs of a folder."""
        rows = pq.read_table(folder / "labels.parquet").to_pylist()
        rng = np.random.default_rng(seed)
        halves = []
        for split in SPLITS:
            of_split = [row for row in rows if row["split"] == split]
            order = rng.permutation(len(of_split))
            for half in np.array_split(order, [len(order) // 2]):
                halves.append([of_split[place] for place in sorted(half)])
        learnt, scored, learnt_test, held_out = halves
        return cls(learnt + learnt_test, scored, held_out)

    def estimator(self, data: Path, out: Path, passes: int, seed: int) -> str:
        """Train a small CLIP on the true classes of `learnt`; its name."""
        write_corpus(self.learnt, "clean", data, out / "learnt", seed)
        return train(out / "learnt", passes, out / "est", seed)

    def settings(self) -> dict[str, int]:
        """The number of images of each kind, for the record."""
        return {name: len(rows) for name, rows in vars(self).items()}


def train(shards: Path, epochs: int | None, out: Path, seed: int, steps: int | None = None) -> str:
    """Train from random weights, as anybody would, for epochs or steps; the model's name."""
    arm = Arm(name="from scratch", options={"epochs": epochs})
    training = replace(_TRAINING, steps=steps)
    return from_scratch(MODEL_CONFIG, training, arm, shards, out, seed)


def write_word_classes(path: Path) -> Path:
    """The nouns of the captions as one class of words, for `--word-classes`.

    Of a name of two words the last one counts: a "motor car" may become a "motor bird".
    """
    nouns = ({name.split()[-1]: None for name in names} for names in CLASS_NAMES.values())
    path.write_text("\n".join(["[thing]", *map(" ".join, nouns)]) + "\n")
    return path


def write_corpus(rows: Sequence[Row], label: str, data: Path, out: Path, seed: int) -> None:
    """Webdataset shards of the rows, captioned by a column of labels; kept if they are there.

    The json says whether the label is wrong. The words of a caption depend on the image and the
    seed, not on the label, so corpora by two labels differ in the wrong captions alone.
    """

    def make(folder: Path) -> None:
        for number, first in enumerate(range(0, len(rows), _SHARD_PAIRS)):
            samples = _samples(rows[first : first + _SHARD_PAIRS], label, data, seed)
            write_shard(folder / f"{number:05}.tar", samples)

    once(out, make)


def _samples(
    rows: Sequence[Row], label: str, data: Path, seed: int
) -> Iterator[tuple[str, dict[str, bytes]]]:
    read = image_reader(data)
    for row in rows:
        key = Path(row["file"]).stem
        uid = row["file"].removesuffix(".jpg").replace("/", "-")
        is_noisy = row[label] != row["clean"]
        facts = {"uid": uid, "is_noisy": is_noisy, "noise_kind": "human" if is_noisy else None}
        rng = np.random.default_rng([seed, int(key), row["split"] == "test"])
        template = TEMPLATES[rng.integers(len(TEMPLATES))]
        names = CLASS_NAMES[row[label]]
        caption = template.format(names[int(rng.random() * len(names))])
        members = {
            "jpg": read(row["file"]), "txt": caption.encode(), "json": json.dumps(facts).encode(),
        }  # fmt: skip
        yield key, members
