"""ncclean and its peers on the same corpus, the same weights and the same embeddings.

    python tests/benchmarks compare.study --out FOLDER --datacomp CHECKOUT --record RECORD.json

Renders the corpora, makes a virtual environment for each peer with the versions of
`compare_peers.PACKAGES`, and measures one step after the other: speed, broken input, a kill, what
is found. Each step leaves its rows in FOLDER; the same command goes on where it stopped.
CHECKOUT is a clone of mlfoundations/datacomp. `--only` names the peers to run; ncclean always does.
Calls with other `--steps` may run beside each other once corpora and environments are there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from machine import OtherProcesses
from records import CODE_VERSION, make_record, write_record
from sklearn.metrics import average_precision_score, roc_auc_score

from compare import embeddings, scoring
from compare.corpus import Corpora, make_corpora, truth_of
from compare.models import ModelFiles, write_models
from compare.peers import PACKAGES, Scorer, environment, installed_versions, scorers

Row = dict[str, Any]
_PAIRS = 4000
_PEERS = ("clip-retrieval", "data-juicer", "datacomp", "cleanlab", "cleanvision")
_NAMED = {
    "clip-retrieval": ("clip-retrieval", "open-clip-torch", "webdataset", "torch"),
    "data-juicer": ("py-data-juicer", "transformers", "datasets", "torch"),
    "cleanlab": ("cleanlab", "cleanvision", "scikit-learn"),
    "datacomp": ("torch", "pandas"),
}


class Comparison:
    """All steps of one comparison below `folder`, for the peers in `only`."""

    def __init__(
        self, folder: Path, checkout: Path | None, only: Iterable[str], pairs: int
    ) -> None:
        self.folder, self.checkout, self.only = folder, checkout, tuple(only)
        self.corpora: Corpora = make_corpora(folder / "corpora", pairs)
        self.models: dict[str, ModelFiles] = write_models(folder / "models")
        self.environments = folder / "environments"
        for name in PACKAGES:
            if name in self.only or (name == "cleanlab" and "cleanvision" in self.only):
                environment(name, self.environments)
        peers = scorers(self.environments, folder / "models")
        self.scorers = [
            peer for name, peer in peers.items() if name.split(",")[0] in ("ncclean", *self.only)
        ]
        self.runs = scoring.Runs(folder)
        self.truth = truth_of(self.corpora.full)

    def steps(self) -> dict[str, Callable[[], list[Row]]]:
        """What is measured, by name, in this order; a step may read what an earlier one left."""
        demo, corpora, runs = self.models["demo"], self.corpora, self.runs
        steps: dict[str, Callable[[], list[Row]]] = {}
        for model in self.models:
            for peer in self._tools("speed"):
                steps[_speed_step(model, peer)] = partial(self._speed, model, peer)
        for peer in self._tools("broken"):
            broken = partial(scoring.broken_input, runs, peer, demo, corpora)
            steps[f"broken {peer.name}"] = lambda broken=broken: [broken()]
        for peer in self._tools("kill"):
            steps[f"kill {peer.name}"] = partial(self._kill, peer)
        steps |= {"found": self._found, "images": self._images}
        optional = {
            "datacomp": self._datacomp,
            "cleanlab": self._cleanlab,
            "cleanvision": self._cleanvision,
        }
        return steps | {name: step for name, step in optional.items() if name in self.only}

    def rows(self, wanted: Iterable[str] | None = None) -> list[Row]:
        """The rows of all steps, or of those `wanted`."""
        steps = self.steps()
        return [
            row
            for name in (steps if wanted is None else wanted)
            for row in self._step(name, steps[name])
        ]

    def versions(self) -> dict[str, dict[str, str]]:
        versions = {
            name: installed_versions(self.environments / name / "bin", _NAMED[name])
            for name in PACKAGES
            if (self.environments / name / "installed").exists()
        }
        if self.checkout is not None:
            git = ["git", "-C", str(self.checkout), "rev-parse", "--short=7", "HEAD"]
            commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout
            versions.setdefault("datacomp", {})["commit"] = commit.strip()
        return versions

    def _step(self, name: str, measure: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a step, measured now or earlier, with the commit that measured them."""
        path = self.folder / "steps" / f"{name.replace(' ', '-')}.json"
        if path.exists():
            step = json.loads(path.read_text())
            if step["code"]["dirty"]:
                raise SystemExit(f"{path} was measured by code without a commit; remove it")
            return [{**row, "commit": step["code"]["commit"]} for row in step["rows"]]
        print(f"== {name}", flush=True)
        others = OtherProcesses()
        rows = measure()
        for row in rows:
            row["other_cores"] = others.cores
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"code": CODE_VERSION, "rows": rows}))
        return [{**row, "commit": CODE_VERSION["commit"]} for row in rows]

    def _speed(self, name: str, peer: Scorer) -> list[Row]:
        large = name != "demo"
        few = self.corpora.large_model_few if large else self.corpora.few
        many = self.corpora.large_model if large else self.corpora.full
        return [scoring.speed(self.runs, peer, self.models[name], few, many)]

    def _tools(self, step: str) -> list[Scorer]:
        return [peer for peer in self.scorers if step in peer.part_in]

    def _kill(self, peer: Scorer) -> list[Row]:
        (undisturbed,) = self.rows([_speed_step("demo", peer)])
        demo, shards = self.models["demo"], self.corpora.full
        return [scoring.kill(self.runs, peer, demo, shards, undisturbed)]

    def _scored(self, tool: str) -> Path:
        """What the speed step left of a tool on the whole corpus."""
        return self.runs.out(f"speed demo {tool} {self.corpora.full.name}")

    def _embedded(self) -> embeddings.Embedded:
        return embeddings.Embedded.load(self._scored("ncclean") / "embeddings")

    def _found(self) -> list[Row]:
        columns = ("noise_probability", "neg_clip_loss", "similarity")
        table = pq.read_table(self._scored("ncclean") / "scores.parquet", columns=["key", *columns])
        content = table.to_pydict()
        by_key = {name: dict(zip(content["key"], content[name], strict=True)) for name in columns}
        by_key["noise_probability"] = {
            key: 1 - noise for key, noise in by_key["noise_probability"].items()
        }
        rows = [self._found_row("ncclean", name, scores) for name, scores in by_key.items()]
        ours = by_key["similarity"]
        for peer in self._tools("found")[1:]:
            scores = dict(peer.scores(self._scored(peer.name)))
            row = self._found_row(peer.name, "cosine", scores)
            row["largest_difference"] = max(abs(scores[key] - ours[key]) for key in scores)
            rows.append(row)
            if peer.name == "data-juicer":
                kept = {key for key, score in scores.items() if score >= 0.1}
                rule = "min_score 0.1 (default)"
                rows.append(embeddings.kept_row(peer.name, rule, kept, self.truth))
        kept = {key for key, clean in by_key["noise_probability"].items() if clean > 0.5}
        rule = "noise_probability < 0.5"
        rows.append(embeddings.kept_row("ncclean", rule, kept, self.truth))
        return rows

    def _found_row(self, tool: str, score: str, scores: dict[str, float]) -> Row:
        row = scoring.found(self.truth, scores, _metrics)
        return {"kind": "found", "tool": tool, "score": score, **row}

    def _images(self) -> list[Row]:
        return embeddings.ncclean_images(
            self._embedded(), self.corpora.full, self.truth, self.folder / "images"
        )

    def _datacomp(self) -> list[Row]:
        if self.checkout is None:
            raise SystemExit("--datacomp: a clone of mlfoundations/datacomp")
        programs = self.environments / "datacomp" / "bin"
        baselines = embeddings.Baselines(self.checkout, programs, self.folder / "datacomp")
        return embeddings.datacomp(baselines, self._embedded(), self.truth)

    def _cleanlab(self) -> list[Row]:
        programs = self.environments / "cleanlab" / "bin"
        rule, duplicates = embeddings.cleanlab(
            programs, self._embedded(), self.truth, self.folder / "cleanlab"
        )
        scores = rule.pop("scores")
        return [self._found_row("cleanlab", "label quality", scores), rule, duplicates]

    def _cleanvision(self) -> list[Row]:
        programs = self.environments / "cleanlab" / "bin"
        folder = self.folder / "cleanvision"
        return embeddings.cleanvision(programs, self.corpora.files, self.truth, folder)


def _speed_step(model: str, peer: Scorer) -> str:
    return f"speed {model} {peer.name}"


def _metrics(noise: list[float], noisy: list[bool]) -> dict[str, float]:
    return {
        "auroc": float(roc_auc_score(noisy, noise)),
        "average_precision": float(average_precision_score(noisy, noise)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--datacomp", type=Path, help="a clone of mlfoundations/datacomp")
    parser.add_argument("--only", nargs="+", choices=_PEERS, default=_PEERS)
    parser.add_argument("--steps", nargs="+", help="measure these steps only, and write no record")
    parser.add_argument("--pairs", type=int, default=_PAIRS, help="rendered pairs, in 500s")
    parser.add_argument("--record", type=Path, help="write the record to this file")
    arguments = parser.parse_args()
    checkout = arguments.datacomp.resolve() if arguments.datacomp else None
    comparison = Comparison(arguments.out.resolve(), checkout, arguments.only, arguments.pairs)
    rows = comparison.rows(arguments.steps)
    if arguments.record and not arguments.steps:
        settings = {"pairs": arguments.pairs}
        record = make_record(rows, settings=settings, peers=comparison.versions())
        write_record(arguments.record, record)
    else:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
