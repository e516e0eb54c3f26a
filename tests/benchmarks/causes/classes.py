"""Class folders of which two were exchanged: whether `ncclean explain` names them.

    python tests/benchmarks causes.classes --out runs/causes-classes [--data FOLDER]
        [--record docs/records/causes-classes.json]

Rendered images of twelve shapes, 150 of each in the folder of its class, and the names of two
folders exchanged: all their captions are wrong, and wrong in the same way. As a control, the same
folders as they should be. With FOLDER, that of `cifar10n.study`, a small CLIP learns half of
CIFAR-10 with its true classes, and 300 photographs of each class that it never saw are put into
folders; half of the time is the training. Three of the five pairs of photographed classes look
alike.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cifar10n.corpora import CLASS_NAMES, Photographs
from corpora import image_reader
from records import Row, benchmark

from causes.judging import explained
from ncclean.base.json_values import finite
from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, zeroshot_sample

SHAPES = ZEROSHOT_SETS[0]
OF_SHAPES = ((), (0, 1), (2, 7), (3, 4), (5, 11), (6, 8))
OF_PHOTOGRAPHS = (
    (),
    ("airplane", "frog"),
    ("bird", "ship"),
    ("cat", "dog"),
    ("automobile", "truck"),
    ("deer", "horse"),
)
Image = tuple[str, str, bytes]  # class, name of the file, content


def shapes(seed: int, per_class: int = 150) -> Iterator[Image]:
    """Rendered images."""
    for index in range(per_class * len(SHAPES.classnames)):
        sample = zeroshot_sample(SHAPES, seed, index)
        name = f"{index:05d}.{sample.extension}"
        yield SHAPES.classnames[sample.label], name, sample.image


def photographs(data: Path, of: Photographs, per_class: int = 300) -> Iterator[Image]:
    """The first photographs of each class that the estimator has not learnt."""
    read = image_reader(data)
    for name in CLASS_NAMES:
        rows = (row for row in of.scored if row["clean"] == name)
        for row in itertools.islice(rows, per_class):
            yield name, Path(row["file"]).name, read(row["file"])


def classes(out: Path, data: Path | None = None, passes: int = 2, seed: int = 0) -> Iterator[Row]:
    """A row for each pair of classes."""
    out.mkdir(parents=True, exist_ok=True)
    names = [tuple(SHAPES.classnames[place] for place in pair) for pair in OF_SHAPES]
    trials, model = [(pair, shapes(number)) for number, pair in enumerate(names)], "demo"
    if data is not None:
        of = Photographs.read(data, seed)
        model = of.estimator(data, out, passes, seed)
        trials = [(pair, photographs(data, of)) for pair in OF_PHOTOGRAPHS]
    for exchanged, images in trials:
        with tempfile.TemporaryDirectory(dir=out) as folder:
            other = dict(zip(exchanged, exchanged[::-1], strict=True))
            for name, file, content in images:
                path = Path(folder, "folders", other.get(name, name), file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            options = {"model": model, "class_template": "a photo of a {}", "precision": "fp32"}
            found = explained(Path(folder, "folders"), Path(folder), score=options)
        yield {
            "exchanged": list(exchanged),
            "pairs": found.summary.pairs,
            "noise_rate": list(found.scored.noise_rate),
            "reported": [
                {
                    "kind": cause.kind, "label": cause.label, "pairs": cause.pairs,
                    "rate": finite(cause.rate),
                }
                for cause in found.summary.causes
            ],
        }  # fmt: skip


if __name__ == "__main__":
    benchmark(classes)
