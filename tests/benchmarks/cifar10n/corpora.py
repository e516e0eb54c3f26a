"""CIFAR-10N as image-text corpora: captions from the labels that people gave the photographs.

CIFAR-10N (Wei et al., ICLR 2022) has labels of CIFAR-10's training images by Mechanical Turk:
`worse` is wrong for 40 % of them, `random1` for 17 % and `aggregate`, a vote, for 9 %. People
confuse what looks alike, cats and dogs more often than cats and ships.

The folder holds `labels.parquet` (columns `file`, `split`, `clean`, `worse`, `random1`,
`aggregate`) and the images at `file`, or an `images.zip` with them; `file` is `train/IIIII.jpg` in
CIFAR-10's order.
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from noise.weak_estimators import CLASS_NAMES, TEMPLATES
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


def parts(folder: Path, seed: int) -> tuple[list[Row], list[Row], list[Row]]:
    """The images to train an estimator on, those to score, and those that no model learns.

    The first are half of the training images and half of the test images, the second the other
    training images, the third the other test images.
    """
    rows = pq.read_table(folder / "labels.parquet").to_pylist()
    rng = np.random.default_rng(seed)
    halves = [_halves([row for row in rows if row["split"] == split], rng) for split in SPLITS]
    (learnt, scored), (learnt_test, held_out) = halves
    return learnt + learnt_test, scored, held_out


def _halves(rows: list[Row], rng: np.random.Generator) -> tuple[list[Row], list[Row]]:
    order = rng.permutation(len(rows))
    middle = len(rows) // 2
    first, second = order[:middle], order[middle:]
    return [rows[place] for place in sorted(first)], [rows[place] for place in sorted(second)]


def write_word_classes(path: Path) -> Path:
    """The nouns of the captions as one class of words, for `--word-classes`.

    Of a name of two words the last one counts: a "motor car" may become a "motor bird".
    """
    lines = ["[thing]"]
    for names in CLASS_NAMES.values():
        lines.append(" ".join(dict.fromkeys(name.split()[-1] for name in names)))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_corpus(rows: Sequence[Row], label: str, folder: Path, out: Path, seed: int) -> None:
    """Webdataset shards of the rows, captioned by a column of labels; kept if they are there.

    The json says whether the label is wrong. The words of a caption depend on the image and the
    seed, not on the label, so corpora by two labels differ in the wrong captions alone.
    """
    read = reader(folder)
    out.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, len(rows), _SHARD_PAIRS)):
        path = out / f"{number:05}.tar"
        if path.exists():
            continue
        aside = path.with_suffix(".part")
        with tarfile.open(aside, "w") as tar:
            for name, data in _members(rows[first : first + _SHARD_PAIRS], label, seed, read):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        aside.rename(path)


def _members(
    rows: Iterable[Row], label: str, seed: int, read: Callable[[str], bytes]
) -> Iterator[tuple[str, bytes]]:
    for row in rows:
        key = Path(row["file"]).stem
        uid = row["file"].removesuffix(".jpg").replace("/", "-")
        is_noisy = row[label] != row["clean"]
        facts = {"uid": uid, "is_noisy": is_noisy, "noise_kind": "human" if is_noisy else None}
        rng = np.random.default_rng([seed, int(key), row["split"] == "test"])
        template = TEMPLATES[rng.integers(len(TEMPLATES))]
        names = CLASS_NAMES[row[label]]
        caption = template.format(names[int(rng.random() * len(names))])
        yield f"{key}.jpg", read(row["file"])
        yield f"{key}.txt", caption.encode()
        yield f"{key}.json", json.dumps(facts).encode()


def reader(folder: Path) -> Callable[[str], bytes]:
    """The bytes of an image by its `file`."""
    archive = folder / "images.zip"
    if archive.exists():
        return zipfile.ZipFile(archive).read
    return lambda name: (folder / name).read_bytes()
