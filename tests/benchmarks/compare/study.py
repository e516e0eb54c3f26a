"""ncclean and its peers on the same corpus, the same weights and the same embeddings.

    python tests/benchmarks compare.study --out FOLDER --datacomp CHECKOUT --record RECORD.json

Renders the corpora, makes a virtual environment for each peer with the versions of
`compare.peers.PACKAGES`, and measures one step after the other: speed, broken input, a kill, what
is kept and found. Each step leaves its rows in FOLDER; the same command goes on where it stopped.
CHECKOUT is a clone of mlfoundations/datacomp. `--only` names the peers to run; ncclean always does.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from corpora import read_embeddings
from machine import OtherProcesses
from process import NCCLEAN, Finished, run
from records import CODE_VERSION, Row, benchmark
from sklearn.metrics import roc_auc_score

from compare.corpus import Corpora, truth_of
from compare.models import ModelFiles, write_models
from compare.peers import DRIVERS, PACKAGES, Scorer, environment, installed_versions, scorers
from compare.rows import cost_of, duplicates_row, kept_row, last_line
from ncclean.data.synthetic.captions import _COLOUR_WORDS, _SHAPE_WORDS

_PEERS = ("clip-retrieval", "data-juicer", "daft", "datacomp", "cleanlab", "cleanvision")
_KEY = re.compile(r"\b\d{9}\b")
# As DataComp's README calls the baseline; the thresholds are for OpenAI's ViT-B/32.
_DATACOMP = {
    "clip_score b32, threshold 0.25": ("--threshold", "0.25"),
    "clip_score b32, fraction 0.3": ("--fraction", "0.3"),
}


class Comparison:
    """All steps of one comparison below `folder`, for the peers in `only`."""

    def __init__(
        self, folder: Path, checkout: Path | None, only: tuple[str, ...], pairs: int
    ) -> None:
        self.folder, self.checkout, self.only = folder, checkout, only
        self.corpora = Corpora.made(folder / "corpora", pairs)
        self.models = write_models(folder / "models")
        for name in PACKAGES:
            if name in only or (name == "cleanlab" and "cleanvision" in only):
                environment(name, folder / "environments")
        peers = scorers(folder / "environments", folder / "models")
        self.scorers = [
            p for name, p in peers.items() if name.lower().split(",")[0] in ("ncclean", *only)
        ]
        self.truth = truth_of(self.corpora.full)

    def steps(self) -> dict[str, Callable[[], Iterator[Row]]]:
        """What is measured, by name, in this order; a step may read what an earlier one left."""
        steps: dict[str, Callable[[], Iterator[Row]]] = {}
        for model in self.models:
            for peer in self._tools("speed"):
                steps[f"speed {model} {peer.name}"] = functools.partial(self._speed, model, peer)
        for kind, measure in (("broken", self._broken), ("kill", self._kill)):
            for peer in self._tools(kind):
                steps[f"{kind} {peer.name}"] = functools.partial(measure, peer)
        steps |= {"kept": self._kept, "images": self._images}
        optional = {
            "datacomp": self._datacomp,
            "cleanlab": self._cleanlab,
            "cleanvision": self._cleanvision,
        }
        return steps | {name: step for name, step in optional.items() if name in self.only}

    def rows(self, name: str) -> list[Row]:
        """The rows of a step, measured now or earlier, with the commit that measured them."""
        path = self.folder / "steps" / f"{_file_name(name)}.json"
        if not path.exists():
            others = OtherProcesses()
            rows = list(self.steps()[name]())
            facts = {"commit": CODE_VERSION["commit"], "other_cores": others.cores}
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps([{**row, **facts} for row in rows]))
        measured: list[Row] = json.loads(path.read_text())
        return measured

    def versions(self) -> dict[str, dict[str, str]]:
        """What is installed for each peer, and the commit of DataComp."""
        versions = {
            name: installed_versions(self._programs(name))
            for name in PACKAGES
            if self._programs(name).exists()
        }
        if self.checkout is not None:
            git = ["git", "-C", str(self.checkout), "rev-parse", "--short=7", "HEAD"]
            commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout
            versions.setdefault("datacomp", {})["commit"] = commit.strip()
        return versions

    def _tools(self, step: str) -> list[Scorer]:
        return [peer for peer in self.scorers if step in peer.part_in]

    def _programs(self, name: str) -> Path:
        return self.folder / "environments" / name / "bin"

    def _out(self, name: str) -> Path:
        return self.folder / "out" / _file_name(name)

    def _run(
        self, scorer: Scorer, shards: Path, model: ModelFiles, name: str, fresh: bool = True,
        **kill: Any,
    ) -> Finished:  # fmt: skip
        out = self._out(name)
        if fresh:
            shutil.rmtree(out, ignore_errors=True)
        # Measured shifts of a model and modules of models are cached; not in the user's home.
        caches = {
            "NCCLEAN_CACHE": str(self.folder / "cache" / "ncclean"),
            "HF_HOME": str(self.folder / "cache" / "huggingface"),
            "HF_HUB_OFFLINE": "1",
        }
        log = self.folder / "logs" / f"{_file_name(name)}.txt"
        return run(scorer.command(shards, model, out), log, environment=caches, **kill)

    def _speed(self, name: str, peer: Scorer) -> Iterator[Row]:
        """Whole commands on few and on many pairs.

        What further pairs cost is the difference: starting up and loading a model are left out. It
        is counted in processor time, which other jobs on the machine change less than the clock.
        """
        corpora, row = self.corpora, {}
        few, many = corpora.few, corpora.full
        if name != "demo":
            few, many = corpora.large_model_few, corpora.large_model
        for shards, ending in ((few, "_few"), (many, "")):
            step = f"speed {name} {peer.name} {shards.name}"
            cost = cost_of(self._run(peer, shards, self.models[name], step))
            cost["pairs"] = len(truth_of(shards))
            row |= {f"{figure}{ending}": value for figure, value in cost.items()}
        further = row["processor_seconds"] - row["processor_seconds_few"]
        speed = (row["pairs"] - row["pairs_few"]) / further
        yield {
            "kind": "speed", "tool": peer.name, "model": name, **row, "pairs_per_core_second": speed
        }  # fmt: skip

    def _broken(self, peer: Scorer) -> Iterator[Row]:
        """The corpus with broken samples, a shard that is cut and one of random bytes."""
        name = f"broken {peer.name}"
        finished = self._run(peer, self.corpora.broken, self.models["demo"], name)
        out, truth = self._out(name), truth_of(self.corpora.broken)
        if peer.name.startswith("data-juicer"):  # it reads files: no cut tar, no unreadable one
            truth = {key: facts for key, facts in truth.items() if key[:5] in ("00000", "00003")}
        good = {key for key, facts in truth.items() if facts.get("broken") is None}
        scored = {key for key, _ in peer.scores(out)} if peer.published(out) else set()
        wrongly = sorted(scored & (truth.keys() - good))
        named = set(_KEY.findall(finished.output))
        if (out / "scores.parquet").exists():
            rows = pq.read_table(out / "scores.parquet", columns=["key", "status"]).to_pylist()
            named = {row["key"] for row in rows if row["status"] != "ok"}
        yield {
            "kind": "broken",
            "tool": peer.name,
            "exit": finished.exit,
            "usable": len(good),
            "usable_scored": len(scored & good),
            "unusable": len(truth) - len(good),
            "unusable_scored": len(wrongly),
            "unusable_scored_kinds": dict(Counter(truth[key]["broken"] for key in wrongly)),
            "unusable_named": len(named & (truth.keys() - good)),
            "said": last_line(finished.output),
        }

    def _kill(self, peer: Scorer) -> Iterator[Row]:
        """SIGKILL to all processes in the middle, then the command again.

        A tool that keeps finished parts is killed when it has one, another one when 60 % of the
        pairs should be done, or earlier where it was done by then.
        """
        (undisturbed,) = self.rows(f"speed demo {peer.name}")
        name, parts = f"kill {peer.name}", peer.parts or (lambda out: [])
        shards, model, out = self.corpora.full, self.models["demo"], self._out(name)
        start, end = undisturbed["seconds_few"], undisturbed["seconds"]
        for done in (0.6, 0.4, 0.2, 0.0):
            after = start + done * (end - start)
            kill = {"kill_when": lambda: bool(parts(out))} if peer.parts else {"kill_after": after}
            killed = self._run(peer, shards, model, name, **kill)
            if killed.exit < 0:
                break
        visible = [path.name for path in peer.published(out)]
        in_parts = sum(pq.read_metadata(part).num_rows for part in parts(out))
        again = self._run(peer, shards, model, name, fresh=False)
        keys = [key for key, _ in peer.scores(out)] if peer.published(out) else []
        yield {
            "kind": "kill",
            "tool": peer.name,
            "was_killed": killed.exit < 0,
            "killed_after": killed.seconds,
            "processor_undisturbed": undisturbed["processor_seconds"],
            "visible_after_kill": visible,
            "pairs_in_parts": in_parts,
            "exit_again": again.exit,
            "seconds_again": again.seconds,
            "processor_again": again.processor_seconds,
            "pairs": len(self.truth),
            "missing": len(self.truth.keys() - set(keys)),
            "doubled": len(keys) - len(set(keys)),
        }

    def _scored(self, tool: str) -> Path:
        """What the speed step left of a tool on the whole corpus."""
        return self._out(f"speed demo {tool} {self.corpora.full.name}")

    def _kept(self) -> Iterator[Row]:
        """How the cosines of the tools rank the mismatched pairs, and what their rules keep."""
        table = pq.read_table(self._scored("ncclean") / "scores.parquet").to_pydict()
        probability = dict(zip(table["key"], table["noise_probability"], strict=True))
        kept = {key for key, noise in probability.items() if noise < 0.5}
        yield kept_row("ncclean", "noise_probability < 0.5", kept, self.truth)
        ours = dict(zip(table["key"], table["similarity"], strict=True))
        for peer in self._tools("found"):
            scores = dict(peer.scores(self._scored(peer.name)))
            keys = [key for key in scores if "copy" not in self.truth[key]]
            noisy = [self.truth[key]["is_noisy"] for key in keys]
            yield {
                "kind": "found", "tool": peer.name,
                "auroc": float(roc_auc_score(noisy, [-scores[key] for key in keys])),
                "largest_difference": max(abs(scores[key] - ours[key]) for key in scores),
            }  # fmt: skip
            if peer.name == "data-juicer":
                kept = {key for key, score in scores.items() if score >= 0.1}
                yield kept_row(peer.name, "min_score 0.1 (default)", kept, self.truth)

    def _images(self) -> Iterator[Row]:
        """`neighbours` for copies."""
        near, log = self.folder / "neighbours.parquet", self.folder / "logs" / "neighbours.txt"
        embeddings = self._scored("ncclean") / "embeddings"
        command = [*NCCLEAN, "neighbours", embeddings, "--out", near, "--overwrite", "--quiet"]
        cost = cost_of(run(command, log))
        rows = pq.read_table(near, columns=["key", "image_group"]).to_pylist()
        copies = {row["key"] for row in rows if row["image_group"] is not None}
        yield {**duplicates_row("ncclean", "`neighbours`, image_group", copies, self.truth), **cost}

    def _datacomp(self) -> Iterator[Row]:
        """What the documented calls keep, and what a cut file among the metadata does.

        The metadata have the layout of DataComp's pools, with the cosine in the column of B/32.
        """
        if self.checkout is None:
            raise SystemExit("--datacomp: a clone of mlfoundations/datacomp")
        folder = self.folder / "datacomp"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "metadata").mkdir(parents=True)
        # Imported by its module for another baseline; pip cannot build it for this Python.
        (folder / "gcld3.py").touch()
        image, text, table = read_embeddings(self._scored("ncclean") / "embeddings")
        table = table.select(["uid", "key", "caption"]).rename_columns(["uid", "key", "text"])
        cosines = np.einsum("nd,nd->n", image, text)
        table = table.append_column("clip_b32_similarity_score", [cosines])
        for number, rows in enumerate(np.array_split(np.arange(len(table)), 8)):
            file = folder / "metadata" / f"{number:08d}.parquet"
            pq.write_table(table.take(rows), file)
            np.savez(file.with_suffix(".npz"), b32_img=image[rows], b32_txt=text[rows])

        def call(name: str, options: tuple[str, ...]) -> Finished:
            return run(
                [
                    self._programs("datacomp") / "python", self.checkout / "baselines.py",
                    "--metadata_dir", folder / "metadata", "--save_path", folder / f"{name}.npy",
                    "--num_workers", "2", "--name", "clip_score", "--arch", "b32", *options,
                ],
                folder / f"{name}.txt",
                environment={"PYTHONPATH": f"{self.checkout}:{folder}"},
            )  # fmt: skip

        key_of = dict(zip(table["uid"].to_pylist(), table["key"].to_pylist(), strict=True))
        for rule, options in _DATACOMP.items():
            cost = cost_of(call("kept", options))
            uids = np.load(folder / "kept.npy").tolist()
            kept = {key_of[f"{int(high):016x}{int(low):016x}"] for high, low in uids}
            yield {**kept_row("DataComp", rule, kept, self.truth), **cost}
        cut = folder / "metadata" / "00000003.parquet"
        cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
        theirs = call("cut", ("--fraction", "0.3"))
        ours = folder / "ncclean.parquet"
        score = [*NCCLEAN, "score", folder / "metadata", "--out", ours, "--quiet"]
        scored = run(score, folder / "ncclean.txt")
        yield {
            "kind": "broken metadata",
            "files": 8,
            "datacomp_exit": theirs.exit,
            "datacomp_wrote": (folder / "cut.npy").exists(),
            "datacomp_said": last_line(theirs.output),
            "ncclean_exit": scored.exit,
            "ncclean_scored": pq.read_table(ours)["status"].to_pylist().count("ok"),
            "ncclean_pairs": len(table),
        }

    def _cleanlab(self) -> Iterator[Row]:
        """Label issues; a caption's words for colours and shapes are the labels of its image."""
        image, _, table = read_embeddings(self._scored("ncclean") / "embeddings")
        features = self.folder / "features.npz"
        np.savez(features, features=image, labels=tags(table["caption"].to_pylist()))
        result, cost = self._driven("datalab.py", features)
        keys = np.array(table["key"].to_pylist())
        kept = keys[~np.array(result["issues"])]
        yield {**kept_row("cleanlab", "no label issue", kept.tolist(), self.truth), **cost}
        copies = set(keys[np.array(result["near_duplicate"])].tolist())
        yield {**duplicates_row("cleanlab", "Datalab near_duplicate", copies, self.truth), **cost}

    def _cleanvision(self) -> Iterator[Row]:
        """Copies among the image files."""
        images = self.folder / "images"
        images.mkdir(exist_ok=True)
        for image in self.corpora.files.glob("*.jpg"):
            (images / image.name).unlink(missing_ok=True)
            (images / image.name).hardlink_to(image)
        table, cost = self._driven("vision.py", images)
        issues = np.array([table[f"is_{kind}_duplicates_issue"] for kind in ("exact", "near")])
        copies = set(np.array(table["keys"])[issues.any(axis=0)].tolist())
        yield {
            **duplicates_row("cleanvision", "exact, near duplicates", copies, self.truth), **cost
        }  # fmt: skip

    def _driven(self, driver: str, source: Path) -> tuple[dict[str, Any], Row]:
        """What a driver of cleanlab's environment writes, and what it took."""
        out = self.folder / f"{driver}.json"
        command = [self._programs("cleanlab") / "python", DRIVERS / driver, source, out]
        cost = cost_of(run(command, self.folder / "logs" / f"{driver}.txt"))
        return json.loads(out.read_text()), cost


def tags(captions: list[str]) -> np.ndarray:
    """(N, K) whether caption i has a word for colour or shape k."""
    shapes = ([form for forms in words for form in forms] for words in _SHAPE_WORDS.values())
    patterns = [
        re.compile(rf"\b({'|'.join(map(re.escape, set(words)))})\b")
        for words in (*_COLOUR_WORDS.values(), *shapes)
    ]
    return np.array([[bool(pattern.search(text)) for pattern in patterns] for text in captions])


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)


def compare(
    out: Path, datacomp: Path | None = None, only: tuple[str, ...] = _PEERS,
    steps: tuple[str, ...] = (), pairs: int = 4000,
) -> Iterator[Row]:  # fmt: skip
    """The rows of all steps, or of some; `pairs` come in 500s."""
    checkout = datacomp.resolve() if datacomp is not None else None
    comparison = Comparison(out.resolve(), checkout, only, pairs)
    for name in steps or comparison.steps():
        yield from comparison.rows(name)
    return {"peers": comparison.versions()}


if __name__ == "__main__":
    benchmark(compare)
