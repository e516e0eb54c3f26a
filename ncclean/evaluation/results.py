"""Store evaluation results: clip_benchmark's JSON, and a table with the outcome for each image.

Every metric of a result is computed from its outcomes, so a comparison of two results resamples
the data behind the reported numbers.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import sparse
from upath import UPath

import ncclean
from ncclean.base import schema, stores
from ncclean.base.atomic import published
from ncclean.base.formats import model_label
from ncclean.base.output_mark import check_free, mark
from ncclean.base.small_tables import read_parquet
from ncclean.base.text_files import parse_json, read_text
from ncclean.errors import InputError
from ncclean.evaluation.embedding import EmbeddedClasses, EmbeddedPairs
from ncclean.evaluation.ranking import KS, TOP, RetrievalDepths

# Tasks by the names of clip_benchmark.
ZEROSHOT = "zeroshot_classification"
RETRIEVAL = "zeroshot_retrieval"
LINEAR_PROBE = "linear_probe"
TASKS = (ZEROSHOT, RETRIEVAL, LINEAR_PROBE)

_IDENTITY = ["query", "image", "number", "label"]


_DENSE_STRATA = 64
LANGUAGE = "en"
_NAMED = ("dataset", "model", "pretrained", "task")


@dataclass(frozen=True)
class Metric:
    """A metric that can be resampled by image: a mean over strata of the share of queries that hit.

    `hits` and `queries` (n images, S strata) count those of each image. The mean is multiplied by
    `scale`; a stratum without queries is excluded. Accuracy has one stratum, the mean recall per
    class has the classes.
    """

    name: str
    hits: sparse.csr_array
    queries: sparse.csr_array
    scale: float = 1.0

    @classmethod
    def of(
        cls,
        name: str,
        image: np.ndarray,
        hit: np.ndarray,
        stratum: np.ndarray | None = None,
        scale: float = 1.0,
    ) -> Metric:
        """Group (Q,) queries by image and stratum, with whether each hit."""
        strata = np.zeros(len(image), dtype=np.int64) if stratum is None else stratum
        shape = (int(image.max()) + 1, int(strata.max()) + 1)

        def counted(values: np.ndarray) -> sparse.csr_array:
            return sparse.csr_array((values.astype(np.float64), (image, strata)), shape=shape)

        return cls(name, counted(hit), counted(np.ones(len(image))), scale)

    def value(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Return the metric of (B,) resamples, given how often (B, n) each image counts."""
        if weights is None:
            weights = np.ones((1, self.hits.shape[0]))
        hits, queries = _product(weights, self.hits), _product(weights, self.queries)
        shares = np.divide(hits, queries, out=np.zeros_like(hits), where=queries > 0)
        strata = np.maximum((queries > 0).sum(axis=1), 1)  # with few images, none may be drawn
        values: np.ndarray = self.scale * shares.sum(axis=1) / strata
        return values


def _product(weights: np.ndarray, counts: sparse.csr_array) -> np.ndarray:
    """(B, S) from (B, n) and (n, S)."""
    # With few strata, BLAS on a dense matrix is several times as fast as a sparse product.
    dense = counts.shape[1] <= _DENSE_STRATA
    product: np.ndarray = weights @ counts.toarray() if dense else (counts.T @ weights.T).T
    return product


def classification_outcomes(embedded: EmbeddedClasses, depth: np.ndarray) -> pa.Table:
    """Return the table of outcomes of a classification, from (N,) ranks of the true class."""
    count = len(embedded.keys)
    return _table(
        query=["image"] * count,
        image=embedded.keys,
        number=np.zeros(count),
        label=embedded.labels.cpu().numpy(),
        depth=depth,
    )


def retrieval_outcomes(embedded: EmbeddedPairs, depths: RetrievalDepths) -> pa.Table:
    """Return the table of outcomes of a retrieval: images, then captions in their images' order."""
    owner = embedded.text_to_image.cpu().numpy()
    images, captions = len(embedded.keys), len(owner)
    # Captions of an image are consecutive: count on from its first.
    first = np.searchsorted(owner, np.arange(images))
    return _table(
        query=["image"] * images + ["caption"] * captions,
        image=[*embedded.keys, *(embedded.keys[number] for number in owner.tolist())],
        number=np.concatenate([np.zeros(images), np.arange(captions) - first[owner]]),
        label=pa.nulls(images + captions, pa.int32()),
        depth=np.concatenate([depths.image.cpu().numpy(), depths.caption.cpu().numpy()]),
    )


def metrics_of(task: str, outcomes: pa.Table, classes: int | None) -> list[Metric]:
    """Return the metrics of a task under clip_benchmark's names, and `rsum` for retrieval.

    `acc5` is omitted for fewer than five `classes`, where clip_benchmark has NaN.
    """
    images = pc.dictionary_encode(outcomes.column("image").combine_chunks())
    image, depth = images.indices.to_numpy(), outcomes.column("depth").to_numpy()
    if task != RETRIEVAL:
        prefix = "lp_" if task == LINEAR_PROBE else ""
        label = outcomes.column("label").to_numpy()
        metrics = [Metric.of(f"{prefix}acc1", image, depth < 1)]
        if classes is None or classes >= TOP:
            metrics.append(Metric.of(f"{prefix}acc5", image, depth < TOP))
        recall = Metric.of(f"{prefix}mean_per_class_recall", image, depth < 1, label)
        return [*metrics, recall]
    is_caption = pc.equal(outcomes.column("query"), "caption").to_numpy(zero_copy_only=False)
    metrics = []
    hits: list[np.ndarray] = []
    strata: list[np.ndarray] = []
    # An image is retrieved by a caption, a text by an image.
    for name, asks in (("image", is_caption), ("text", ~is_caption)):
        for k in KS:
            hit = depth[asks] < k
            metrics.append(Metric.of(f"{name}_retrieval_recall@{k}", image[asks], hit))
            hits.append(hit)
            strata.append(np.full(len(hit), len(strata)))
    everyone = np.concatenate([image[is_caption]] * len(KS) + [image[~is_caption]] * len(KS))
    rsum = Metric.of(
        "rsum", everyone, np.concatenate(hits), np.concatenate(strata), scale=100.0 * len(strata)
    )
    return [*metrics, rsum]


def aligned(a: pa.Table, b: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Bring two models' tables of outcomes into the same order of images.

    Raises `InputError` if their images, captions or labels differ.
    """
    order = [(name, "ascending") for name in ("query", "image", "number")]
    a, b = a.sort_by(order), b.sort_by(order)
    if not a.select(_IDENTITY).equals(b.select(_IDENTITY)):
        raise InputError(
            f"the two results are on different samples ({a.num_rows:,} and {b.num_rows:,} "
            "queries): evaluate both models on the same data"
        )
    return a, b


def _table(**columns: object) -> pa.Table:
    arrays = [
        columns[field.name]
        if isinstance(columns[field.name], pa.Array)
        else pa.array(columns[field.name]).cast(field.type)
        for field in schema.OUTCOMES
    ]
    return pa.table(arrays, schema=schema.OUTCOMES)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The metrics of one model on one data set: shares in [0, 1], except `rsum`, in percent.

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
        """The model's name in tables."""
        return model_label(self.model, self.pretrained)

    @property
    def file_name(self) -> str:
        """The file name of this result, as clip_benchmark forms it."""
        return file_name(self.dataset, self.pretrained, self.model, self.task)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON: clip_benchmark's fields, then ours."""
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
        """Write the result's JSON, after the Parquet file with the outcome of each image."""
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
    """Return the file name of a result, as clip_benchmark forms it."""
    parts = (dataset, pretrained, model, LANGUAGE, task)
    return "_".join(re.sub(r"[^\w.+-]+", "-", part).strip("-.") for part in parts) + ".json"


def check_free_results(
    out: str | None, names: Sequence[str], command: str, overwrite: bool
) -> None:
    """Raise `InputError` if results would replace files of another command or program."""
    for path in _places(out, names) if out is not None else ():
        check_free([str(path), str(_outcomes_of(path))], command, overwrite)


def write_results(results: Sequence[Evaluation], out: str, command: str) -> list[str]:
    """Write each result to a separate file; return the JSON files.

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
    path = stores.location(out)
    return [path] if out.endswith(".json") else [path / name for name in names]


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
