"""Find evaluation sets and describe their contents; shards stay unread.

SET/classnames.txt                          classification: one name a line
SET/zeroshot_classification_templates.txt   one prompt a line, {c} for the name
SET/dataset_type.txt                        `retrieval` for images with captions
SET/test/nshards.txt, 0.tar, 1.tar, ...     images with .cls, or with .txt, a caption a line
SET/test/labels.csv                         or a table `image,label` of images and their classes
SET/train/...                               the same, for linear probes

Shards are clip_benchmark's layout. Tables of labels are CyCLIP's, which may also call the test
split `validation` or `val`, or keep `labels.csv` in the set's own folder. A table of captioned
images (Karpathy's json, csv, jsonl, Parquet) is a retrieval set.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable
from dataclasses import dataclass, field

from upath import UPath

from ncclean.base import stores
from ncclean.base.text_files import read_text
from ncclean.data.images.resolve import resolve_images
from ncclean.data.images.tables import TABLES
from ncclean.data.options import SourceOptions
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import InputError

CLASSIFICATION = "classification"
RETRIEVAL = "retrieval"
_COMMANDS = {
    CLASSIFICATION: "`evaluate zeroshot` or `evaluate linear-probe`",
    RETRIEVAL: "`evaluate retrieval`",
}
_TYPE_FILE = "dataset_type.txt"
_CLASSES_FILE = "classnames.txt"
_TEMPLATES_FILE = "zeroshot_classification_templates.txt"
_LABELS = "labels.csv"
_FOLDERS = {"test": ("test", "validation", "val"), "train": ("train",)}
_KARPATHY = ".json"


@dataclass(frozen=True)
class BenchmarkSet:
    """One evaluation set in a folder; `kind` is `classification` or `retrieval`."""

    folder: UPath
    kind: str
    label: str = "cls"  # the member with the class

    @property
    def name(self) -> str:
        return str(self.folder.name)

    def has(self, split: str) -> bool:
        return stores.exists(self.folder / split)

    def shards(self, split: str) -> list[ShardRef]:
        """Return the shards of the split `test` or `train`, in order.

        Raises `InputError` if the split or a shard that `nshards.txt` counts is missing.
        """
        if not self.has(split):
            raise InputError(f"{self.folder} has no folder {split} with shards")
        listed = self.folder / split / "nshards.txt"
        if not stores.exists(listed):
            return resolve_shards([str(self.folder / split)])
        text = read_text(str(listed)).strip()
        if not text.isdigit() or int(text) < 1:
            raise InputError(f"{listed} must hold the number of shards, not {text[:40]!r}")
        shards = [self.folder / split / f"{number}.tar" for number in range(int(text))]
        missing = next((path for path in shards if not stores.exists(path)), None)
        if missing is not None:
            raise InputError(f"{missing} is missing: {listed} counts {text} shards")
        return resolve_shards(map(str, shards))

    def classnames(self) -> list[str]:
        """Return the names of the set's classes, by label: the first line is class 0.

        Raises `InputError` if there are none, and for a blank line between names: skipping it would
        shift all later names to other classes.
        """
        names = self._lines(_CLASSES_FILE, "the names of its classes, one a line")
        if "" in names:
            raise InputError(
                f"{self.folder / _CLASSES_FILE}, line {names.index('') + 1} is blank, and the line "
                "is the number of the class: write its name, or take the line out if no label "
                "counts it"
            )
        return names

    def templates(self) -> list[str]:
        """Return the set's prompt templates, with `{c}` for the class.

        Raises `InputError` without any.
        """
        lines = self._lines(_TEMPLATES_FILE, "its prompts, one a line with {c} for the class")
        templates = [line for line in lines if line]
        without = next((line for line in templates if "{c}" not in line), None)
        if without is not None:
            raise InputError(
                f"{self.folder / _TEMPLATES_FILE} has a prompt without {{c}}: {without[:80]!r}"
            )
        return templates

    def _lines(self, name: str, meaning: str) -> list[str]:
        path = self.folder / name
        if not stores.exists(path):
            raise InputError(f"{self.folder} has no {name} with {meaning}")
        # Not `splitlines`, which also ends lines at characters that class names may contain.
        lines = [line.strip() for line in io.StringIO(read_text(str(path)).rstrip(), newline=None)]
        if not any(lines):
            raise InputError(f"{path} is empty; it must hold {meaning}")
        return lines


@dataclass(frozen=True)
class LabelledSet(BenchmarkSet):
    """A classification set of images with tables of labels, in the folders `splits`."""

    label: str = "label"  # the column of the class
    splits: dict[str, UPath] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the folder's name, after that of its parent if the folder is a split."""
        own, above = str(self.folder.name), str(self.folder.parent.name)
        is_split = own in _FOLDERS["test"] and self.splits["test"] == self.folder
        return f"{above}-{own}" if is_split and above else own

    def has(self, split: str) -> bool:
        return split in self.splits

    def shards(self, split: str) -> list[ShardRef]:
        """Return the shards of the table of labels. Raises `InputError` if the split is missing."""
        if split not in self.splits:
            raise InputError(f"{self.folder} has no folder {split} with {_LABELS}")
        return resolve_images([str(self.splits[split] / _LABELS)])


@dataclass(frozen=True)
class CaptionedSet:
    """A retrieval set in one file of captioned images.

    Of Karpathy's json, it has the test split, unless options differ.
    """

    folder: UPath  # the path of the file
    options: SourceOptions
    kind: str = "retrieval"
    label: str = ""

    @property
    def name(self) -> str:
        """Return the file's stem, with the splits if they are not the test split."""
        return "-".join([str(self.folder.stem), *self.options.split])

    def has(self, split: str) -> bool:
        return split == "test"

    def shards(self, split: str) -> list[ShardRef]:
        """Return the shards of the table. Raises `InputError` for a file without images."""
        options = self.options
        if self.folder.suffix == _KARPATHY and not options.split:
            options = dataclasses.replace(options, split=("test",))
        shards = resolve_images([str(self.folder)], options)
        if all(shard.rows is not None and shard.rows[0] == shard.rows[1] for shard in shards):
            raise InputError(f"{self.folder} has no image of the split {', '.join(options.split)}")
        return shards

    def classnames(self) -> list[str]:
        raise InputError(f"{self.folder} has captions and no classes: use `evaluate retrieval`")

    templates = classnames


EvaluationSet = BenchmarkSet | CaptionedSet


def find_sets(
    sources: Iterable[str],
    kind: str,
    splits: Iterable[str] = ("test",),
    options: SourceOptions | None = None,
) -> list[EvaluationSet]:
    """Find the sets of a kind that have these splits: folders that are sets or contain some.

    A table of captioned images is a retrieval set; `options` say where to find its images.

    Raises `InputError` for a folder without such a set, and for a set named twice.
    """
    needed = tuple(splits)
    sets: list[EvaluationSet] = []
    for source in sources:
        folder = stores.location(source.rstrip("/") or source)
        if not stores.exists(folder):
            raise InputError(f"{source} does not exist")
        one = read_set(folder)
        if one is None and kind == RETRIEVAL and source.endswith((*TABLES, ".json")):
            one = CaptionedSet(folder, options or SourceOptions())
        if one is not None:
            sets.append(_checked(one, kind, needed))
            continue
        inside = [read_set(child) for child in _folders(folder)]
        fitting = [
            child
            for child in inside
            if child is not None and child.kind == kind and all(map(child.has, needed))
        ]
        if not fitting:
            raise InputError(
                f"{source} is not a {kind} set in the layout of clip_benchmark, and "
                f"holds none with {' and '.join(needed)}"
            )
        sets += fitting
    names = [one.name for one in sets]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"two sets are called {twice}, and so would their results be: rename one of the folders"
        )
    return sets


def read_set(folder: UPath) -> EvaluationSet | None:
    """Read the set in a folder; None if it has no `test` and no labels.

    Raises `InputError` for another type.
    """
    if splits := _labelled_splits(folder):
        return LabelledSet(folder, CLASSIFICATION, splits=splits)
    if not stores.exists(folder / "test"):
        return None
    stated = _stated_kind(folder)
    kind = CLASSIFICATION if stated is None else stated
    if kind not in _COMMANDS:
        raise InputError(
            f"{folder / _TYPE_FILE} must say {' or '.join(_COMMANDS)}, not {kind[:40]!r}"
        )
    return BenchmarkSet(folder, kind)


def is_retrieval_set(folder: UPath) -> bool:
    """Check whether a folder states that it is a retrieval set."""
    return _stated_kind(folder) == RETRIEVAL


def _stated_kind(folder: UPath) -> str | None:
    typed = folder / _TYPE_FILE
    return read_text(str(typed)).strip().lower() if stores.exists(typed) else None


def _labelled_splits(folder: UPath) -> dict[str, UPath]:
    """Return folders with a label table, by split; a root with its own table is a test split."""
    splits = {}
    for split, names in _FOLDERS.items():
        labelled = [folder / name for name in names if stores.exists(folder / name / _LABELS)]
        if labelled:
            splits[split] = labelled[0]
    if "test" in splits:
        return splits
    return {"test": folder} if stores.exists(folder / _LABELS) else {}


def _checked(one: EvaluationSet, kind: str, splits: tuple[str, ...]) -> EvaluationSet:
    if one.kind != kind:
        raise InputError(f"{one.folder} is a {one.kind} set: use {_COMMANDS[one.kind]}")
    lacking = next((split for split in splits if not one.has(split)), None)
    if lacking is not None:
        raise InputError(f"{one.folder} has no folder {lacking} with shards")
    return one


def _folders(folder: UPath) -> list[UPath]:
    children = stores.ask("list", folder, lambda: [c for c in folder.iterdir() if c.is_dir()])
    return sorted(children, key=lambda child: child.name)
