"""What `compare.py` measures of tools that take embeddings or images alone.

DataComp's `clip_score` baseline, cleanlab and `ncclean neighbours` get the embeddings that
`ncclean score` has written, cleanvision the image files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import NCCLEAN
from sklearn.metrics import roc_auc_score

from compare import process as compare_process
from compare.corpus import DUPLICATES
from compare.peers import DRIVERS
from compare.process import Finished
from ncclean.data.synthetic.captions import _COLOUR_WORDS, _SHAPE_WORDS

Row = dict[str, Any]
Truth = Mapping[str, Mapping[str, Any]]
# As DataComp's README calls the baseline; the thresholds are for OpenAI's ViT-B/32.
DATACOMP_RULES = {
    "clip_score b32, threshold 0.25": ("--threshold", "0.25"),
    "clip_score b32, fraction 0.3": ("--fraction", "0.3"),
}


@dataclass(frozen=True)
class Embedded:
    """Pairs with their embeddings, (N, d) each, and similarities; row i belongs to `keys[i]`."""

    keys: list[str]
    uids: list[str]
    captions: list[str]
    image: np.ndarray
    text: np.ndarray
    folder: Path

    @classmethod
    def load(cls, folder: Path) -> Embedded:
        """What `score --embeddings` wrote."""
        image, text, tables = [], [], []
        for metadata in sorted((folder / "metadata").glob("*.parquet")):
            number = metadata.stem.removeprefix("metadata_")
            image.append(np.load(folder / "img_emb" / f"img_emb_{number}.npy"))
            text.append(np.load(folder / "text_emb" / f"text_emb_{number}.npy"))
            tables.append(pq.read_table(metadata, columns=["key", "uid", "caption"]))
        columns = pa.concat_tables(tables).to_pydict()
        return cls(
            columns["key"], columns["uid"], columns["caption"],
            np.concatenate(image).astype(np.float32), np.concatenate(text).astype(np.float32),
            folder,
        )  # fmt: skip

    @property
    def similarity(self) -> np.ndarray:
        cosine: np.ndarray = (self.image * self.text).sum(axis=1)
        return cosine


class Baselines:
    """DataComp's `baselines.py`, from a checkout of its repository."""

    def __init__(self, checkout: Path, programs: Path, folder: Path) -> None:
        self.checkout, self.programs, self.folder = checkout, programs, folder
        # Imported by its module for another baseline; pip cannot build it for this Python.
        stub = folder / "stub" / "gcld3.py"
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.touch()

    def run(self, metadata: Path, options: Sequence[str], name: str) -> tuple[Finished, Path]:
        out = self.folder / f"{name}.npy"
        out.unlink(missing_ok=True)
        command = [
            self.programs / "python", self.checkout / "baselines.py",
            "--metadata_dir", metadata, "--save_path", out, "--num_workers", "2",
            "--name", "clip_score", "--arch", "b32", *options,
        ]  # fmt: skip
        paths = f"{self.checkout}:{self.folder / 'stub'}"
        finished = compare_process.run(
            command, self.folder / f"{name}.txt", environment={"PYTHONPATH": paths}
        )
        return finished, out

    def write_metadata(self, embedded: Embedded, folder: Path, files: int) -> None:
        """The layout of DataComp's pools, with the cosine in the column of B/32."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, rows in enumerate(np.array_split(np.arange(len(embedded.keys)), files)):
            table = {
                "uid": [embedded.uids[row] for row in rows],
                "key": [embedded.keys[row] for row in rows],
                "text": [embedded.captions[row] for row in rows],
                "clip_b32_similarity_score": embedded.similarity[rows],
            }
            pq.write_table(pa.table(table), folder / f"{number:08d}.parquet")
            vectors = {"b32_img": embedded.image[rows], "b32_txt": embedded.text[rows]}
            np.savez(folder / f"{number:08d}.npz", **vectors)


def datacomp(baselines: Baselines, embedded: Embedded, truth: Truth) -> list[Row]:
    """What the documented calls keep, and what a cut file among the metadata does."""
    metadata = baselines.folder / "metadata"
    baselines.write_metadata(embedded, metadata, files=8)
    rows = []
    key_of = dict(zip(embedded.uids, embedded.keys, strict=True))
    for rule, options in DATACOMP_RULES.items():
        finished, out = baselines.run(metadata, options, "kept")
        if finished.exit:
            raise RuntimeError(f"{rule} ended with {finished.exit}:\n{finished.output[-2000:]}")
        pairs = np.load(out)
        kept = {key_of[f"{int(high):016x}{int(low):016x}"] for high, low in pairs.tolist()}
        rows.append({**kept_row("DataComp", rule, kept, truth), **cost_of(finished)})
    cut = metadata / "00000003.parquet"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    finished, out = baselines.run(metadata, DATACOMP_RULES["clip_score b32, fraction 0.3"], "cut")
    ours = baselines.folder / "ncclean.parquet"
    score = [*NCCLEAN, "score", metadata, "--out", ours, "--overwrite", "--json", "--quiet"]
    scored = compare_process.run(score, baselines.folder / "ncclean.txt")
    rows_kept = pq.read_table(ours, columns=["status"])["status"].to_pylist()
    rows.append(
        {
            "kind": "broken metadata",
            "files": 8,
            "datacomp_exit": finished.exit,
            "datacomp_wrote": out.exists(),
            "datacomp_said": last_line(finished.output),
            "ncclean_exit": scored.exit,
            "ncclean_scored": rows_kept.count("ok"),
            "ncclean_pairs": len(embedded.keys),
        }
    )
    return rows


def cleanlab(programs: Path, embedded: Embedded, truth: Truth, folder: Path) -> tuple[Row, Row]:
    """Label issues where a caption's words for colours and shapes are the labels of its image."""
    folder.mkdir(parents=True, exist_ok=True)
    features, out = folder / "features.npz", folder / "datalab.json"
    np.savez(features, features=embedded.image, labels=_tags(embedded.captions))
    finished = compare_process.run(
        [programs / "python", DRIVERS / "datalab.py", features, out], folder / "datalab.txt"
    )
    if finished.exit:
        raise RuntimeError(f"datalab ended with {finished.exit}:\n{finished.output[-2000:]}")
    result = json.loads(out.read_text())
    issues = {key for key, issue in zip(embedded.keys, result["issues"], strict=True) if issue}
    rule = kept_row("cleanlab", "no label issue", set(embedded.keys) - issues, truth)
    rule["scores"] = dict(zip(embedded.keys, result["quality"], strict=True))
    flagged = zip(embedded.keys, result["near_duplicate"], strict=True)
    duplicates = duplicates_row(
        "cleanlab", "Datalab near_duplicate", {key for key, found in flagged if found}, truth
    )
    cost = cost_of(finished)
    return {**rule, **cost}, {**duplicates, **cost}


def cleanvision(programs: Path, files: Path, truth: Truth, folder: Path) -> list[Row]:
    """Issues of the image files: copies, blurred and dark ones."""
    images = folder / "images"
    if not images.exists():
        images.mkdir(parents=True)
        for image in files.glob("*.jpg"):
            (images / image.name).hardlink_to(image)
    out = folder / "vision.json"
    command = [programs / "python", DRIVERS / "vision.py", images, out]
    finished = compare_process.run(command, folder / "vision.txt")
    if finished.exit:
        raise RuntimeError(f"cleanvision ended with {finished.exit}:\n{finished.output[-2000:]}")
    table = json.loads(out.read_text())
    cost = cost_of(finished)

    def flagged(*issues: str) -> set[str]:
        columns = [table[f"is_{issue}_issue"] for issue in issues]
        return {key for key, *found in zip(table["keys"], *columns, strict=True) if any(found)}

    duplicates = flagged("exact_duplicates", "near_duplicates")
    rows = [{**duplicates_row("cleanvision", "exact, near duplicates", duplicates, truth), **cost}]
    for kind, issue in (("blurred", "blurry"), ("dark", "dark")):
        scores = dict(zip(table["keys"], table[f"{issue}_score"], strict=True))
        rows.append({**spoilt_row("cleanvision", kind, scores, flagged(issue), truth), **cost})
    return rows


def ncclean_images(embedded: Embedded, shards: Path, truth: Truth, folder: Path) -> list[Row]:
    """`neighbours` for copies, `score --signals image` for blurred and dark pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    near = folder / "neighbours.parquet"
    command = [*NCCLEAN, "neighbours", embedded.folder, "--out", near, "--json", "--quiet"]
    finished = compare_process.run([*command, "--overwrite"], folder / "neighbours.txt")
    table = pq.read_table(near, columns=["key", "image_group"]).to_pydict()
    grouped = zip(table["key"], table["image_group"], strict=True)
    duplicates = {key for key, group in grouped if group is not None}
    row = duplicates_row("ncclean", "`neighbours`, image_group", duplicates, truth)
    rows = [{**row, **cost_of(finished)}]
    scores = folder / "signals.parquet"
    command = [*NCCLEAN, "score", shards, "--out", scores, "--model", "demo", "--json", "--quiet"]
    finished = compare_process.run(
        [*command, "--precision", "fp32", "--signals", "image", "--overwrite"],
        folder / "signals.txt",
    )
    signals = pq.read_table(scores, columns=["key", "blur", "brightness"]).to_pydict()
    for kind, signal in (("blurred", "blur"), ("dark", "brightness")):
        by_key = dict(zip(signals["key"], signals[signal], strict=True))
        row = spoilt_row("ncclean", kind, by_key, None, truth)
        rows.append({**row, **cost_of(finished)})
    return rows


def kept_row(tool: str, rule: str, kept: Iterable[str], truth: Truth) -> Row:
    """What a rule keeps of the matched and of the mismatched pairs; copies are left out."""
    pairs = {key: facts for key, facts in truth.items() if "copy" not in facts}
    noisy = {key for key, facts in pairs.items() if facts["is_noisy"]}
    kept = set(kept) & pairs.keys()
    return {
        "kind": "kept",
        "tool": tool,
        "rule": rule,
        "pairs": len(pairs),
        "noisy": len(noisy),
        "kept": len(kept),
        "kept_noisy": len(kept & noisy),
    }


def duplicates_row(tool: str, rule: str, flagged: set[str], truth: Truth) -> Row:
    """How many of the known copies are flagged, and how many images that have no copy."""
    copies = {key: facts["copy"] for key, facts in truth.items() if "copy" in facts}
    sources = {facts["copy_of"] for facts in truth.values() if "copy" in facts}
    alone = truth.keys() - copies.keys() - sources
    return {
        "kind": "duplicates",
        "tool": tool,
        "rule": rule,
        "copies": {
            kind: [sum(copies[key] == kind for key in flagged & copies.keys()),
                   sum(value == kind for value in copies.values())]
            for kind in DUPLICATES
        },
        "alone": len(alone),
        "alone_flagged": len(flagged & alone),
    }  # fmt: skip


def spoilt_row(
    tool: str, kind: str, scores: Mapping[str, float], flagged: set[str] | None, truth: Truth
) -> Row:
    """How well low scores tell images that were spoilt from those that were not.

    `flagged` is None for a tool that has a score and no threshold.
    """
    spoilt = {key: facts.get("copy") == kind for key, facts in truth.items()
              if facts.get("copy") in (None, kind)}  # fmt: skip
    keys = [key for key in spoilt if scores.get(key) is not None]
    auroc = float(roc_auc_score([spoilt[key] for key in keys], [-scores[key] for key in keys]))
    row: Row = {"kind": "spoilt", "tool": tool, "spoilt": kind, "auroc": auroc}
    if flagged is not None:
        hits = sum(spoilt[key] for key in flagged & spoilt.keys())
        row |= {
            "found": hits,
            "of": sum(spoilt.values()),
            "wrongly": len(flagged & spoilt.keys()) - hits,
            "others": len(spoilt) - sum(spoilt.values()),
        }
    return row


def cost_of(finished: Finished) -> Row:
    return {
        "seconds": finished.seconds,
        "processor_seconds": finished.processor_seconds,
        "peak_mib": finished.peak_mib,
    }


def last_line(output: str) -> str:
    """The last line that a command printed, without paths."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return re.sub(r"/\S*/", "", lines[-1])[:300] if lines else ""


def _tags(captions: Sequence[str]) -> np.ndarray:
    """(N, K) whether caption i has a word for colour or shape k."""
    shapes = {
        name: [word for forms in words for word in forms] for name, words in _SHAPE_WORDS.items()
    }
    words = [*_COLOUR_WORDS.values(), *shapes.values()]
    patterns = [re.compile(rf"\b({'|'.join(map(re.escape, set(each)))})\b") for each in words]
    return np.array(
        [[bool(pattern.search(text)) for pattern in patterns] for text in captions], int
    )
