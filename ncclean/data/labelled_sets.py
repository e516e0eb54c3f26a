"""Evaluation sets in CyCLIP's layout: images with a table of labels, and classes in Python.

SET/labels.csv          image,label: a path from the folder, and the number of its class
SET/classes.py          the names and prompts of the classes; see `class_file`
SET/test/labels.csv     or a folder for each split: `test` (or `validation`, `val`) and `train`;
                        classes.py lies in it or above it

One folder with both files is a set without `train`.
"""

from __future__ import annotations

from dataclasses import dataclass

from upath import UPath

from ncclean.base import stores
from ncclean.data.class_file import ClassFile, read_class_file
from ncclean.data.images.resolve import resolve_images
from ncclean.data.shards import ShardRef
from ncclean.errors import InputError

_LABELS = "labels.csv"
_CLASSES = "classes.py"
_FOLDERS = {"test": ("test", "validation", "val"), "train": ("train",)}


@dataclass(frozen=True)
class LabelledSet:
    """One set; `splits` are the folders with its labels, `classes_file` has its classes."""

    folder: UPath
    splits: dict[str, UPath]
    classes_file: UPath
    kind: str = "classification"
    label: str = "label"  # column of the class

    @property
    def name(self) -> str:
        """The folder's; with the one above where it is that of a split."""
        own, above = str(self.folder.name), str(self.folder.parent.name)
        is_split = own in _FOLDERS["test"] and self.splits["test"] == self.folder
        return f"{above}-{own}" if is_split and above else own

    def has(self, split: str) -> bool:
        return split in self.splits

    def shards(self, split: str) -> list[ShardRef]:
        """Units of the table of labels. Raises `InputError` if the split is missing."""
        if split not in self.splits:
            raise InputError(f"{self.folder} has no folder {split} with {_LABELS}")
        return resolve_images([str(self.splits[split] / _LABELS)])

    def classnames(self) -> list[str]:
        """The names of the classes, by label."""
        return self._classes().classes

    def templates(self) -> list[str]:
        """The prompts, with `{c}` for the class."""
        return self._classes().templates

    def _classes(self) -> ClassFile:
        return read_class_file(str(self.classes_file))


def read_labelled_set(folder: UPath) -> LabelledSet | None:
    """The set in a folder, None if there is none. Raises `InputError` for one without classes."""
    splits = {}
    for split, names in _FOLDERS.items():
        there = [folder / name for name in names if _exists(folder / name / _LABELS)]
        if there:
            splits[split] = there[0]
    if "test" not in splits:
        if not _exists(folder / _LABELS):
            return None
        splits = {"test": folder}
    places = [splits["test"] / _CLASSES, folder / _CLASSES]
    classes = next((place for place in places if _exists(place)), None)
    if classes is None:
        raise InputError(f"{splits['test']} has {_LABELS}, but no {_CLASSES} with its classes")
    return LabelledSet(folder, splits, classes)


def _exists(path: UPath) -> bool:
    return bool(stores.ask("read", path, path.exists))
