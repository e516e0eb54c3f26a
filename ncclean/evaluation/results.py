"""Results of evaluations as files: clip_benchmark's JSON, the outcomes in Parquet beside it."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

import ncclean
from ncclean.base import schema, stores
from ncclean.base.atomic import published
from ncclean.base.output_mark import check_free, mark
from ncclean.base.small_tables import read_parquet
from ncclean.base.text_files import parse_json, read_text
from ncclean.errors import InputError
from ncclean.evaluation.outcomes import TASKS

LANGUAGE = "en"
_NAMED = ("dataset", "model", "pretrained", "task")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One model on one data set. Metrics are shares in [0, 1], but for `rsum`, in percent.

    `skipped` counts the unusable samples by reason; `classes` is None for retrieval; `settings`
    describe the training of a probe.
    """

    dataset: str
    model: str
    pretrained: str
    task: str
    metrics: dict[str, float | None]
    images: int
    classes: int | None
    skipped: dict[str, int]
    fingerprint: str
    precision: str
    preprocessing: dict[str, Any]
    outcomes: pa.Table = field(repr=False, compare=False)
    captions: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The model's name in tables, with its pretrained tag."""
        if self.pretrained in ("bundled", "local", "hub"):
            return self.model
        return f"{self.model} {self.pretrained}"

    @property
    def file_name(self) -> str:
        """The file name of this result, as clip_benchmark forms it."""
        return file_name(self.dataset, self.pretrained, self.model, self.task)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON: clip_benchmark's fields, then ours."""
        return {
            "dataset": self.dataset,
            "model": self.model,
            "pretrained": self.pretrained,
            "task": self.task,
            "metrics": self.metrics,
            "language": LANGUAGE,
            "images": self.images,
            "captions": self.captions,
            "classes": self.classes,
            "skipped": self.skipped,
            "settings": self.settings,
            "fingerprint": self.fingerprint,
            "precision": self.precision,
            "preprocessing": self.preprocessing,
            "ncclean_version": ncclean.__version__,
        }

    def write(self, path: UPath, command: str) -> None:
        """Write the result's JSON, and first the Parquet file with the outcome of each image."""
        made_by = {"made_by": mark(command)}
        with published(_outcomes_of(path)) as aside:
            table = self.outcomes.replace_schema_metadata(made_by)
            pq.write_table(table, aside, compression="zstd")
        with published(path) as aside:
            aside.write_text(json.dumps({**made_by, **self.to_json()}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        """Read a result and its outcomes. Raises `InputError` for another file."""
        record = _record(path)
        outcomes = _outcomes_of(UPath(path))
        if not outcomes.exists():
            raise InputError(
                f"{path} has no {outcomes.name} beside it, with the outcome for each image; "
                "evaluate the model with ncclean to compare it"
            )
        table = read_parquet(str(outcomes), schema.OUTCOMES.names, what="outcomes")
        return cls(
            **{name: str(record[name]) for name in _NAMED},
            metrics=record["metrics"],
            images=int(record.get("images", 0)),
            captions=record.get("captions"),
            classes=record.get("classes"),
            skipped=record.get("skipped", {}),
            settings=record.get("settings", {}),
            fingerprint=str(record.get("fingerprint", "")),
            precision=str(record.get("precision", "")),
            preprocessing=record.get("preprocessing", {}),
            outcomes=table,
        )


def file_name(dataset: str, pretrained: str, model: str, task: str) -> str:
    """The file name of a result, as clip_benchmark forms it."""
    parts = (dataset, pretrained, model, LANGUAGE, task)
    return "_".join(re.sub(r"[^\w.+-]+", "-", part).strip("-.") for part in parts) + ".json"


def check_free_results(
    out: str | None, names: Sequence[str], command: str, overwrite: bool
) -> None:
    """Raise `InputError` if results would replace files of another command or program."""
    for path in _places(out, names) if out is not None else ():
        check_free([str(path), str(_outcomes_of(path))], command, overwrite)


def write_results(results: Sequence[Evaluation], out: str, command: str) -> list[str]:
    """Write each result to a file of its own; returns the JSON files.

    `out` is a folder, or for one result may be a `.json` file. Raises `InputError` for one file
    and several results, and for two results of the same name.
    """
    check_out(out, len(results))
    paths = _places(out, [result.file_name for result in results])
    names = [path.name for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two results would have the name {twice}: write them to different --out")
    for result, path in zip(results, paths, strict=True):
        result.write(path, command)
    return [str(path) for path in paths]


def check_out(out: str | None, count: int) -> None:
    """Raise `InputError` if `out` names one file and there are several results."""
    if out is not None and out.endswith(".json") and count != 1:
        raise InputError(f"--out {out} is one file, but there are {count} results: name a folder")


def read_results(source: str) -> list[Evaluation]:
    """Read the results in a JSON file, a folder or a glob. Raises `InputError` if there are none.

    Other JSON files in a folder are ignored.
    """
    path = Path(source)
    if path.is_dir():
        results = [
            Evaluation.read(file) for file in sorted(path.glob("*.json")) if _is_result(file)
        ]
    elif path.is_file():
        results = [Evaluation.read(path)]
    else:
        results = [Evaluation.read(Path(file)) for file in sorted(glob.glob(source))]
    if not results and not glob.glob(source):
        raise InputError(f"{source} does not exist: `ncclean evaluate ... --out` writes results")
    if not results:
        raise InputError(
            f"{source} names no result of `ncclean evaluate` (a JSON file or a folder)"
        )
    return results


def _places(out: str, names: Sequence[str]) -> list[UPath]:
    place = stores.location(out)
    return [place] if out.endswith(".json") else [place / name for name in names]


def _outcomes_of(path: UPath) -> UPath:
    return path.with_name(path.name.removesuffix(".json") + ".parquet")


def _is_result(path: Path) -> bool:
    try:
        _record(path)
    except InputError:
        return False
    return True


def _record(path: Path) -> dict[str, Any]:
    record = parse_json(read_text(path), path)
    if not isinstance(record, dict) or not {*_NAMED, "metrics"} <= set(record):
        raise InputError(f"{path} is not a result of `ncclean evaluate`")
    if record["task"] not in TASKS:
        raise InputError(f"{path} has the task {record['task']!r}, which cannot be compared")
    return record
