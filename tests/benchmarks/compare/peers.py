"""ncclean and the peers that score pairs: a command each, and how to read its scores.

A tool runs as its documentation recommends for one machine: two processes decode, one or two run
the model. What is set differently from its defaults, and why, stands beside the option.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from corpora import members_of, once, read_embeddings, write_shard
from process import NCCLEAN

from compare.corpus import truth_of
from compare.models import ModelFiles

DRIVERS = Path(__file__).parent / "drivers"
_WORKERS = 2  # processes, one for each core
_TORCH = "torch==2.15.0"

# What pip installs into the environment of each.
PACKAGES = {
    # OpenAI's clip, which it imports, needs the pkg_resources of an old setuptools.
    "clip-retrieval": (
        "clip-retrieval==2.45.0",
        "open_clip_torch==2.32.0",
        "webdataset==0.2.111",
        _TORCH,
        "torchvision==0.29.2",
    ),
    # The operator asks for torch and transformers when it first runs; transformers is the release
    # that data-juicer's own extra names.
    "data-juicer": ("py-data-juicer==1.6.1", "transformers==4.57.1", _TORCH),
    # Its `embed_image` imports torch, torchvision and transformers.
    "daft": ("daft==0.7.26", "transformers==4.57.1", _TORCH, "torchvision==0.29.2"),
    "cleanlab": ("cleanlab[datalab]==2.9.0", "cleanvision==0.3.7"),
    # Of its requirements, what the clip_score baseline imports, in versions for this Python.
    "datacomp": (
        "fasttext-wheel==0.9.2",
        "nltk==3.9.1",
        "numpy==1.26.4",
        "pandas==2.2.3",
        "pyarrow==15.0.2",
        "fsspec==2024.6.1",
        "tqdm==4.66.5",
        _TORCH,
    ),
}
_NAMED = (
    "clip-retrieval", "open-clip-torch", "webdataset", "torch", "py-data-juicer", "transformers",
    "datasets", "daft", "cleanlab", "cleanvision", "scikit-learn", "pandas",
)  # fmt: skip
_AFTERWARDS = {"clip-retrieval": ("setuptools==69.5.1",)}


def environment(name: str, below: Path) -> Path:
    """The folder of the programs of a peer's virtual environment, made on the first call."""
    folder = below / name
    done = folder / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for packages in (PACKAGES[name], _AFTERWARDS.get(name, ())):
            if packages:
                subprocess.run([folder / "bin" / "pip", "install", "-q", *packages], check=True)
        done.touch()
    return folder / "bin"


def installed_versions(programs: Path) -> dict[str, str]:
    """What is installed in an environment, of the packages that a peer rests on."""
    command = [programs / "python", "-m", "pip", "list", "--format", "json"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout
    versions = {row["name"].lower().replace("_", "-"): row["version"] for row in json.loads(listed)}
    return {name: versions[name] for name in _NAMED if name in versions}


@dataclass(frozen=True)
class Scorer:
    """A tool that scores image-text pairs.

    `command` takes the shards, the model and the folder to write to; `scores` reads the similarity
    of each key from that folder and `published` lists what a user would take for its result.
    `part_in` names the steps that it takes part in; `parts` lists what a run has finished of its
    result, for a tool that keeps such parts.
    """

    name: str
    command: Callable[[Path, ModelFiles, Path], list[str | Path]]
    scores: Callable[[Path], list[tuple[str, float]]]
    published: Callable[[Path], list[Path]]
    part_in: tuple[str, ...] = ("speed", "broken", "kill", "found")
    parts: Callable[[Path], list[Path]] | None = None


def scorers(environments: Path, models: Path) -> dict[str, Scorer]:
    return {
        scorer.name: scorer
        for scorer in (
            _ncclean("ncclean", "fp32"),
            replace(_ncclean("ncclean, auto precision", "auto"), part_in=("speed",)),
            clip_retrieval(environments / "clip-retrieval" / "bin", models),
            _data_juicer("data-juicer", environments / "data-juicer" / "bin", {}),
            replace(
                _data_juicer(
                    "data-juicer, batch_size 1",
                    environments / "data-juicer" / "bin",
                    {"batch_size": 1},
                ),
                part_in=("broken",),
            ),
            _daft(environments / "daft" / "bin"),
        )
    }


def _ncclean(name: str, precision: str) -> Scorer:
    def command(shards: Path, model: ModelFiles, out: Path) -> list[str | Path]:
        table = out / "scores.parquet"
        embeddings = out / "embeddings"
        return [
            *NCCLEAN, "score", shards, "--out", table, *model.ncclean, "--precision", precision,
            "--embeddings", embeddings, "--json", "--quiet",
            "--shift", "shuffled",  # the model's own is measured once for all corpora
        ]  # fmt: skip

    def scores(out: Path) -> list[tuple[str, float]]:
        table = pq.read_table(out / "scores.parquet", columns=["key", "similarity", "status"])
        rows = zip(*(table[column].to_pylist() for column in table.column_names), strict=True)
        return [(key, similarity) for key, similarity, status in rows if status == "ok"]

    return Scorer(
        name,
        command,
        scores,
        lambda out: list(out.glob("scores.parquet")),
        parts=lambda out: list(out.glob("*.work/part*.parquet")),
    )


def clip_retrieval(programs: Path, models: Path) -> Scorer:
    """Its `inference`, on one of the files of `compare.models` in `models`."""

    def command(shards: Path, model: ModelFiles, out: Path) -> list[str | Path]:
        inference: list[str | Path] = [programs / "clip-retrieval", "inference"]
        if model.name == "demo":  # an architecture that open_clip does not know by name
            inference = [programs / "python", DRIVERS / "clip_retrieval_demo.py"]
            inference.append(models / f"{model.open_clip_name}.json")
        last = sorted(shards.glob("*.tar"))[-1].stem
        return [
            *inference,
            "--input_dataset", f"{shards}/{{00000..{last}}}.tar",
            "--output_folder", out,
            "--input_format", "webdataset",
            "--num_prepro_workers", str(_WORKERS),
            "--batch_size", "64",  # the default of 256 is for GPUs; it warms up with two batches
            "--clip_model", f"open_clip:{model.open_clip_name}/{model.checkpoint}",
        ]  # fmt: skip

    def scores(out: Path) -> list[tuple[str, float]]:
        image, text, table = read_embeddings(out)
        cosines = np.einsum("nd,nd->n", image, text).tolist()
        return list(zip(table["image_path"].to_pylist(), cosines, strict=True))

    return Scorer("clip-retrieval", command, scores, lambda out: list(out.glob("*_emb/*.npy")))


def _data_juicer(name: str, programs: Path, options: Mapping[str, Any]) -> Scorer:
    def command(shards: Path, model: ModelFiles, out: Path) -> list[str | Path]:
        out.mkdir(parents=True, exist_ok=True)
        recipe = out / "recipe.json"  # JSON is YAML
        similarity = {
            "hf_clip": str(model.hugging_face),
            "trust_remote_code": model.name == "demo",  # its mean pooling
            "min_score": -1.0,  # keeps all, for their scores; the default is 0.1
            **options,
        }
        recipe.write_text(
            json.dumps(
                {
                    "project_name": "compare",
                    "dataset_path": str(_listed(shards)),
                    "export_path": str(out / "kept.jsonl"),
                    "np": _WORKERS,
                    "keep_stats_in_res_ds": True,
                    "ds_cache_dir": str(out / "cache"),  # no run finds what another one cached
                    "process": [{"image_text_similarity_filter": similarity}],
                }
            )
        )
        return [programs / "dj-process", "--config", recipe]

    def scores(out: Path) -> list[tuple[str, float]]:
        rows = map(json.loads, (out / "kept.jsonl").read_text().splitlines())
        found = ((row["key"], row["__dj__stats__"]["image_text_similarity"]) for row in rows)
        return [(key, values[0]) for key, values in found if values]

    return Scorer(name, command, scores, lambda out: list(out.glob("kept.jsonl")))


def _daft(programs: Path) -> Scorer:
    def command(shards: Path, model: ModelFiles, out: Path) -> list[str | Path]:
        if shards.name != "broken":  # as one shard: its models are loaded anew for each query
            whole = shards.with_name(f"{shards.name}-whole")
            samples = members_of(*sorted(shards.glob("*.tar")))
            once(whole, lambda folder: write_shard(folder / "00000.tar", samples))
            shards = whole
        driver = DRIVERS / "daft_similarity.py"
        return [programs / "python", driver, shards, model.hugging_face, out / "cosines"]

    def scores(out: Path) -> list[tuple[str, float]]:
        table = pq.read_table(out / "cosines")
        return list(zip(table["__key__"].to_pylist(), table["cosine"].to_pylist(), strict=True))

    return Scorer("Daft", command, scores, lambda out: list(out.glob("cosines/*.parquet")))


def _listed(shards: Path) -> Path:
    """The samples of a folder of shards in data-juicer's format; their files lie beside it."""
    files = shards.with_name("broken-files" if shards.name == "broken" else "files")
    listing = shards.with_name(f"{shards.name}.jsonl")
    if not listing.exists():
        listing.write_text("".join(_listed_rows(shards, files)))
    return listing


def _listed_rows(shards: Path, files: Path) -> list[str]:
    wanted = set(truth_of(shards)) if shards.name != "broken" else None
    rows = []
    for image in sorted(files.glob("*.jpg")):
        caption = image.with_suffix(".txt")
        if (wanted is not None and image.stem not in wanted) or not caption.exists():
            continue
        text = caption.read_bytes().decode("utf-8", errors="replace")
        row = {"text": f"<__dj__image> {text} <|__dj__eoc|>", "images": [str(image)]}
        rows.append(json.dumps({**row, "key": image.stem}) + "\n")
    return rows
