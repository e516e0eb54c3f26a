"""Class folders of photographs of which two were exchanged: whether `ncclean explain` names them.

    python tests/benchmarks causes.class_photographs --data FOLDER --out runs/class-photographs
        [--record docs/records/causes-class-photographs.json]

FOLDER is that of `cifar10n.study`. A small CLIP learns half of CIFAR-10 with its true classes; 300
photographs of each class that it never saw are then put into the folder of their class, and the
names of two folders exchanged. As a control, the same folders as they should be. Five pairs of
classes, three of them look alike. Half of the time is the training.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from cifar10n.corpora import Row, reader
from cifar10n.estimator import Beginning, parser
from records import make_record, write_record

from causes.classes import explained

PER_CLASS = 300
EXCHANGED = (
    (),
    ("airplane", "frog"),
    ("bird", "ship"),
    ("cat", "dog"),
    ("automobile", "truck"),
    ("deer", "horse"),
)


def write_folders(rows: list[Row], data: Path, out: Path, exchanged: tuple[str, ...]) -> None:
    """Write the first photographs of each class into a folder of its name, or of the other's."""
    read = reader(data)
    other = dict(zip(exchanged, exchanged[::-1], strict=True))
    counts: Counter[str] = Counter()
    for row in rows:
        name = row["clean"]
        if counts[name] < PER_CLASS:
            counts[name] += 1
            folder = out / other.get(name, name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / Path(row["file"]).name).write_bytes(read(row["file"]))


def main() -> None:
    arguments = parser(__doc__).parse_args()
    begun = Beginning.of(arguments)
    measured = []
    for number, exchanged in enumerate(EXCHANGED):
        place = arguments.out / str(number)
        shutil.rmtree(place, ignore_errors=True)
        write_folders(begun.scored, arguments.data, place / "folders", exchanged)
        measured.append(explained(place / "folders", place, begun.model, exchanged))
        print(json.dumps(measured[-1]), flush=True)
    if arguments.record is not None:
        settings = {"per_class": PER_CLASS, "passes": arguments.passes, "learnt": len(begun.learnt)}
        write_record(
            arguments.record, make_record(measured, settings=settings, seeds=[arguments.seed])
        )


if __name__ == "__main__":
    main()
