"""Class folders of which two were exchanged: whether `ncclean explain` names them.

    python tests/benchmarks causes.classes --out runs/causes-classes
        [--record docs/records/causes-classes.json]

Rendered images of twelve shapes, 150 of each in the folder of its class, and the names of two
folders exchanged: all their captions are wrong, and wrong in the same way. As a control, the same
folders as they should be. Five pairs of shapes.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclean_pipelines.explain import Explain
from records import make_record, write_record

import ncclean
from ncclean.base.json_values import finite
from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, zeroshot_sample

PER_CLASS = 150
EXCHANGED = (None, (0, 1), (2, 7), (3, 4), (5, 11), (6, 8))


def write_folders(out: Path, exchanged: tuple[int, int] | None, seed: int) -> None:
    """Write a folder of images for each class."""
    shapes = ZEROSHOT_SETS[0]
    names = list(shapes.classnames)
    if exchanged is not None:
        first, second = exchanged
        names[first], names[second] = names[second], names[first]
    for index in range(PER_CLASS * len(names)):
        sample = zeroshot_sample(shapes, seed, index)
        folder = out / names[sample.label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:05d}.{sample.extension}").write_bytes(sample.image)


def explained(folders: Path, out: Path, model: str, exchanged: Sequence[str]) -> dict[str, Any]:
    """Score and explain one set of folders; the row of the record."""
    scores, embeddings = str(out / "scores.parquet"), str(out / "embeddings")
    scored = ncclean.score(
        [str(folders)], out=scores, model=model, class_template="a photo of a {}",
        embeddings=embeddings, precision="fp32",
    ).summary  # fmt: skip
    found = Explain(
        scores=[scores], out=str(out / "causes.parquet"), embeddings=[embeddings]
    ).run().summary  # fmt: skip
    return {
        "exchanged": list(exchanged),
        "pairs": found.pairs,
        "noise_rate": list(scored.noise_rate),
        "reported": [
            {"kind": cause.kind, "label": cause.label, "pairs": cause.pairs,
             "rate": finite(cause.rate)}
            for cause in found.causes
        ],
    }  # fmt: skip


def measure(out: Path, exchanged: tuple[int, int] | None, seed: int) -> dict[str, Any]:
    """Write, score and explain one set of folders."""
    shutil.rmtree(out, ignore_errors=True)
    write_folders(out / "folders", exchanged, seed)
    names = [ZEROSHOT_SETS[0].classnames[place] for place in exchanged or ()]
    return explained(out / "folders", out, "demo", names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    rows = []
    for seed, exchanged in enumerate(EXCHANGED):
        rows.append(measure(arguments.out / str(seed), exchanged, seed))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.record is not None:
        settings = {"per_class": PER_CLASS, "model": "demo"}
        seeds = list(range(len(EXCHANGED)))
        write_record(arguments.record, make_record(rows, settings=settings, seeds=seeds))


if __name__ == "__main__":
    main()
