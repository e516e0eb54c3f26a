"""What the objectives do to a model that has learnt noise, over seeds: the tables of docs/results.

    python tests/benchmarks/repair.py --out runs/ [--table repair] [--seeds 3] [--pairs 4000]

Each run fine-tunes `demo-noisy` on a corpus rendered for its seed with permuted captions, for the
same number of samples, and is measured on held-out scenes. Runs that are in `results.jsonl` already
are not repeated, so the command can be interrupted and extended.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import torch
from ncclean_pipelines.finetune import FinetuneRequest, finetune
from ncclean_pipelines.score import ScoreRequest, score
from ncclean_pipelines.select import SelectRequest, select

from ncclean.config import ScoreOptions
from ncclean.data.decode import ImageDecoder
from ncclean.data.synthetic.corpus import CorpusOptions, write_corpus
from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, retrieval_pair, zeroshot_sample
from ncclean.data.weighted_loader import LoaderOptions
from ncclean.evaluation.retrieval import recall_at_k
from ncclean.evaluation.zeroshot import classifier_weights, zeroshot_accuracy
from ncclean.models.estimator import Estimator
from ncclean.selection.policy import Policy
from ncclean.training.objectives.ncu import NcuOptions
from ncclean.training.objectives.registry import ObjectiveOptions
from ncclean.training.trainer import TrainOptions

PATIENT, JUDGE = "demo-noisy", "demo"
METRICS = ("retrieval", "rsum", "shape", "colour", "texture", "count")
_HELD_OUT = 1000


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table: an objective with options, on all pairs, on a selection or on none."""

    name: str
    method: str | None = "clip"
    options: dict[str, Any] = field(default_factory=dict)
    ncu: dict[str, Any] = field(default_factory=dict)
    selection: str | None = None  # `clean`, `weights` or `split`
    noise: float = 0.4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs share."""

    pairs: int
    epochs: int
    prompt_epochs: int
    batch_size: int
    learning_rate: float
    forget_percent: float


REPAIR = (
    Arm(name="patient", method=None),
    Arm(name="clip, noisy pairs"),
    Arm(name="clip, selected pairs", selection="clean"),
    Arm(name="osa", method="osa", selection="weights"),
    Arm(name="gradient_ascent", method="gradient_ascent"),
    Arm(name="softclip", method="softclip"),
    Arm(name="ncu", method="ncu"),
    Arm(name="ncu, textual prefixes (V1)", method="ncu", ncu={"negative": "prefixes"}),
    Arm(name="ncu, largest distance (V2)", method="ncu", ncu={"relation": "distance"}),
    Arm(name="ncu, false negatives only (V3)", method="ncu", ncu={"unlearn": "false_negatives"}),
    Arm(name="ncu, false positives only (V4)", method="ncu", ncu={"unlearn": "false_positives"}),
    Arm(name="ncu, last column by share", method="ncu", ncu={"last_column": "forget_share"}),
    Arm(name="ncu, split by the score table", method="ncu", ncu={"split": "table"},
        selection="split"),
    Arm(name="clip, clean pairs (oracle)", noise=0.0),
)  # fmt: skip
_ROBUST: dict[str, dict[str, Any]] = {
    "clip": {"method": "clip"},
    "rince": {"method": "rince"},
    "decl": {"method": "decl"},
    "bayes, paper": {"method": "bayes", "options": {"bayes_mode": "paper"}},
    "bayes, strict": {"method": "bayes", "options": {"bayes_mode": "strict"}},
    "bayes, proper prior": {"method": "bayes", "options": {"bayes_mode": "proper_prior"}},
}
ROBUST = tuple(
    Arm(name=f"{name}, {noise:.0%} noise", noise=noise, **fields)
    for noise in (0.0, 0.2, 0.4, 0.6)
    for name, fields in _ROBUST.items()
)
TABLES = {"repair": REPAIR, "robust": ROBUST}


class HeldOut:
    """Rendered scenes that no corpus shares: retrieval among 1,000, and four zero-shot sets."""

    def __init__(self, judged: Estimator) -> None:
        decode = ImageDecoder(judged.preprocessing)
        pairs = [retrieval_pair(0, index) for index in range(_HELD_OUT)]
        self._captions = [pair.captions[0] for pair in pairs]
        self._images = torch.stack([decode(pair.image).pixels for pair in pairs])
        self._sets = {}
        for each in ZEROSHOT_SETS:
            samples = [zeroshot_sample(each, 0, index) for index in range(_HELD_OUT)]
            pixels = torch.stack([decode(sample.image).pixels for sample in samples])
            self._sets[each.name] = (each, pixels, torch.tensor([s.label for s in samples]))

    def measure(self, estimator: Estimator) -> dict[str, float]:
        """Shares: mean of both R@1 (`retrieval`), top-1 of each set; `rsum` in percent."""

        def images(pixels: torch.Tensor) -> torch.Tensor:
            return torch.cat([estimator.encode_image(part) for part in pixels.split(250)])

        recalls = recall_at_k(
            images(self._images),
            estimator.encode_text(self._captions),
            torch.arange(_HELD_OUT),
        )
        found = {
            "retrieval": (recalls["image_to_text_R@1"] + recalls["text_to_image_R@1"]) / 2,
            "rsum": recalls["rsum"],
        }
        for name, (each, pixels, labels) in self._sets.items():
            weights = classifier_weights(estimator.encode_text, each.classnames, each.templates)
            found[name] = zeroshot_accuracy(images(pixels), weights, labels)["acc1"]
        return found


class Corpora:
    """A corpus for each seed and noise, with its scores and selections; made when asked for."""

    def __init__(self, folder: Path, pairs: int) -> None:
        self._folder, self._pairs = folder, pairs

    def shards(self, seed: int, noise: float) -> Path:
        out = self._folder / f"shards-{seed}-{noise:.0%}"
        if not out.exists():
            write_corpus(out, CorpusOptions(pairs=self._pairs, noise={"ncr": noise}, seed=seed))
        return out

    def selection(self, seed: int, noise: float, kind: str) -> Path:
        out = self._folder / f"{kind}-{seed}-{noise:.0%}.parquet"
        if not out.exists():
            scores = self._folder / f"scores-{seed}-{noise:.0%}.parquet"
            if not scores.exists():
                score(ScoreRequest(
                    shards=[str(self.shards(seed, noise))], out=str(scores), model=JUDGE,
                    options=ScoreOptions(forget_percent=100 * noise),
                ))  # fmt: skip
            policy = {
                "clean": Policy(method="noise-probability"),
                "weights": Policy(weights="osa_weight"),
                "split": Policy(method="ncu", with_forget=True),
            }[kind]
            select(SelectRequest(scores=[str(scores)], out=str(out), policy=policy))
        return out


def train(arm: Arm, seed: int, setting: Setting, corpora: Corpora, out: Path) -> str:
    """Fine-tune as the arm says; the model to measure."""
    if arm.method is None:
        return PATIENT
    selection = None
    if arm.selection is not None:
        selection = str(corpora.selection(seed, arm.noise, arm.selection))
    epochs = setting.epochs + setting.prompt_epochs
    if arm.method == "ncu":
        epochs = setting.epochs
    elif arm.selection == "clean":  # as many samples as the others see
        epochs = round(epochs * setting.pairs / pq.read_metadata(cast(str, selection)).num_rows)
    finetune(
        FinetuneRequest(
            method=arm.method,
            shards=[str(corpora.shards(seed, arm.noise))],
            selection=selection,
            out=str(out),
            model=PATIENT,
            objective=ObjectiveOptions(
                learning_rate=setting.learning_rate,
                epochs=epochs,
                prompt_epochs=setting.prompt_epochs,
                ncu=NcuOptions(**{"forget_percent": setting.forget_percent, **arm.ncu}),
                **arm.options,
            ),
            batch_size=setting.batch_size,
            overwrite=True,
            loader=LoaderOptions(seed=seed),
            training=TrainOptions(seed=seed, tensorboard=False, save_minutes=1e6),
        )
    )
    return f"local-dir:{out}"


def run(table: str, seeds: int, setting: Setting, folder: Path) -> list[dict[str, Any]]:
    """All runs of a table that are not in `results.jsonl` yet; its records."""
    log = folder / "results.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    settings = dataclasses.asdict(setting)
    done = {(each["arm"], each["seed"]) for each in records if each["setting"] == settings}
    corpora = Corpora(folder, setting.pairs)
    held_out: HeldOut | None = None
    for seed in range(seeds):
        for arm in TABLES[table]:
            if (arm.name, seed) in done:
                continue
            start = time.perf_counter()
            model = train(arm, seed, setting, corpora, folder / "run")
            seconds = time.perf_counter() - start
            estimator = Estimator.load(model, None)
            held_out = held_out or HeldOut(estimator)
            record = {
                "arm": arm.name,
                "seed": seed,
                "setting": settings,
                "seconds": round(seconds),
                **held_out.measure(estimator),
            }
            records.append(record)
            with log.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)
    return [each for each in records if each["setting"] == settings]


def table_lines(table: str, records: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: mean and spread (standard deviation over seeds) in percent."""
    yield "| model | " + " | ".join(METRICS) + " |"
    yield "|---|" + "---|" * len(METRICS)
    for arm in TABLES[table]:
        found = [each for each in records if each["arm"] == arm.name]
        if found:
            cells = [_cell([each[name] for each in found], name) for name in METRICS]
            yield f"| {arm.name} | " + " | ".join(cells) + " |"


def _cell(values: list[float], name: str) -> str:
    percent = [value if name == "rsum" else 100 * value for value in values]
    spread = f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else ""
    return f"{statistics.mean(percent):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=cast(str, __doc__).split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of corpora and results")
    parser.add_argument("--table", choices=list(TABLES), default="repair")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=4, help="and two for ncu's prompt")
    parser.add_argument("--prompt-epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--forget-percent", type=float, default=40)
    arguments = parser.parse_args()
    setting = Setting(
        pairs=arguments.pairs,
        epochs=arguments.epochs,
        prompt_epochs=arguments.prompt_epochs,
        batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
        forget_percent=arguments.forget_percent,
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    records = run(arguments.table, arguments.seeds, setting, arguments.out)
    print("\n".join(table_lines(arguments.table, records)))


if __name__ == "__main__":
    main()
