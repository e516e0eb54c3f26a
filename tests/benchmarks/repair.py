"""What the objectives do to a model that has learnt noise, over seeds: the tables of docs/results.

    python tests/benchmarks/repair.py --out runs/ [--table repair] [--seeds 3] [--pairs 16000]

A corpus is rendered, the captions of a share of its pairs are permuted, and a small CLIP is trained
on it from random weights: the patient. Every objective then goes on from the patient with the same
number of samples, once for each seed (of the order of the pairs and of what the objective draws),
and all are measured on held-out scenes. Tables `robust` and `disncl` ask what noise does to a model
that has none yet: they go on from a novice, which has learnt from other, clean pairs. The images
are decoded once and kept in memory; all else is what `ncclean finetune` does. Runs that are in
`results.jsonl` already are not repeated, so the command can be interrupted and extended.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import open_clip
import pyarrow.parquet as pq
import torch
import train_demo
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from open_clip.model import CLIP
from repair_arms import DEFAULTS, PATIENT, PATIENT_NOISE, TABLES, Arm, Setting, Start
from torch import nn

from ncclean.config import ScoreOptions
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.options import LoaderOptions
from ncclean.data.shards import resolve_shards
from ncclean.data.synthetic.corpus import CorpusOptions, write_corpus
from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, retrieval_pair, zeroshot_sample
from ncclean.data.weighted_loader import LoaderCounts, TrainBatch, WeightedLoader
from ncclean.evaluation.retrieval import recall_at_k
from ncclean.evaluation.zeroshot import classifier_weights, zeroshot_accuracy
from ncclean.models.estimator import Estimator
from ncclean.models.heads import headed
from ncclean.models.text_tower import token_lengths
from ncclean.selection.policy import Policy
from ncclean.training.feature_cache import CachedFeatures
from ncclean.training.objectives.base import Objective, Saved
from ncclean.training.objectives.registry import make_objective
from ncclean.training.options import NcuOptions, ObjectiveOptions, TrainOptions
from ncclean.training.trainer import Trainer

JUDGE = "demo"  # the estimator whose scores select and weigh
# 16 px patches: a quarter of the cost of the bundled models, which have 8 px.
PATIENT_CONFIG: dict[str, Any] = {
    "embed_dim": 128,
    "vision_cfg": {
        "image_size": 64,
        "layers": 4,
        "width": 128,
        "head_width": 64,
        "patch_size": 16,
        "pool_type": "avg",
    },
    "text_cfg": {
        "context_length": 77,
        "vocab_size": 49408,
        "width": 128,
        "heads": 4,
        "layers": 2,
    },
}
PREPROCESSING = Preprocessing((64, 64), (0.5,) * 3, (0.5,) * 3)
METRICS = ("retrieval", "rsum", "shape", "colour", "texture", "count")
_HELD_OUT = 1000


_DISNCL_EPOCHS, _DISNCL_RATE = 4, 5e-4


class HeldOut:
    """Rendered scenes that no corpus shares: retrieval among 1,000, and four zero-shot sets."""

    def __init__(self) -> None:
        decode = ImageDecoder(PREPROCESSING)
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


@dataclass(frozen=True)
class Pairs:
    """Decoded pairs in memory: pixels (N, 3, 64, 64) uint8, and what a selection says of them."""

    pixels: torch.Tensor
    captions: list[str]
    uids: list[str]
    weights: torch.Tensor
    is_forget: torch.Tensor

    def chosen(self, selection: Path) -> Pairs:
        """The selected pairs with their weights and forget marks."""
        table = pq.read_table(selection)
        place = {uid: row for row, uid in enumerate(self.uids)}
        rows = [place[uid] for uid in table.column("uid").to_pylist()]
        split = table.column("split").to_pylist()
        return Pairs(
            self.pixels[rows],
            [self.captions[row] for row in rows],
            [self.uids[row] for row in rows],
            torch.tensor(table.column("weight").to_pylist()),
            torch.tensor([each == "forget" for each in split]),
        )


class MemoryLoader:
    """Batches of `Pairs`, in an order of their own each epoch."""

    def __init__(self, pairs: Pairs, batch_size: int, seed: int) -> None:
        self._pairs, self._batch_size, self._seed = pairs, batch_size, seed
        self.steps_per_epoch = len(pairs.uids) // batch_size
        self.counts = LoaderCounts()

    def epoch(self, epoch: int, first: int = 0) -> Iterator[TrainBatch]:
        order = torch.Generator().manual_seed(1000 * self._seed + epoch)
        rows = torch.randperm(len(self._pairs.uids), generator=order)
        for step in range(first, self.steps_per_epoch):
            part = rows[step * self._batch_size : (step + 1) * self._batch_size]
            yield TrainBatch(
                self._pairs.pixels[part],
                [self._pairs.captions[row] for row in part],
                [self._pairs.uids[row] for row in part],
                self._pairs.weights[part],
                self._pairs.is_forget[part],
            )


class Corpora:
    """A corpus for each noise, with its scores and selections; and the models to start from."""

    def __init__(self, folder: Path, setting: Setting) -> None:
        self._folder, self._setting = folder, setting
        self._held: tuple[tuple[float, int], Pairs] | None = None

    def shards(self, noise: float, seed: int = 0) -> Path:
        out = self._folder / f"shards-{noise:.0%}-{seed}"
        if not out.exists():
            options = CorpusOptions(pairs=self._setting.pairs, noise={"ncr": noise}, seed=seed)
            write_corpus(out, options)
        return out

    def pairs(self, noise: float, seed: int = 0) -> Pairs:
        if self._held is None or self._held[0] != (noise, seed):
            loader = WeightedLoader(
                resolve_shards([str(self.shards(noise, seed))]),
                None,
                PREPROCESSING,
                LoaderOptions(shuffle=False, augment=False, drop_last=False),
            )
            batches = list(loader.epoch(0))
            self._held = (
                (noise, seed),
                Pairs(
                    torch.cat([batch.pixels for batch in batches]),
                    [caption for batch in batches for caption in batch.captions],
                    [uid for batch in batches for uid in batch.uids],
                    torch.cat([batch.weights for batch in batches]),
                    torch.cat([batch.is_forget for batch in batches]),
                ),
            )
        return self._held[1]

    def selection(self, noise: float, kind: str) -> Path:
        out = self._folder / f"{kind}-{noise:.0%}.parquet"
        if not out.exists():
            scores = self._folder / f"scores-{noise:.0%}.parquet"
            if not scores.exists():
                Score(
                    shards=[str(self.shards(noise))],
                    out=str(scores),
                    model=JUDGE,
                    options=ScoreOptions(forget_percent=100 * noise),
                ).run()
            policy = {
                "clean": Policy(method="noise-probability"),
                "weights": Policy(weights="osa_weight"),
                "split": Policy(method="ncu", with_forget=True),
            }[kind]
            Select(scores=[str(scores)], out=str(out), policy=policy).run()
        return out

    def start(self, start: Start) -> Estimator:
        """A CLIP that has learnt from its corpus as it is; trained once."""
        path = self._folder / f"{start.name}.pt"
        torch.manual_seed(0)
        model = CLIP(**PATIENT_CONFIG)
        if path.exists():
            model.load_state_dict(torch.load(path, weights_only=True))
        estimator = estimator_of(model)
        if not path.exists():
            pairs = self.pairs(start.noise, start.corpus_seed)
            tokens = estimator.tokenize(pairs.captions)
            tokens = tokens[:, : int(token_lengths(tokens).max())]
            train_demo.train(
                model,
                train_demo.TrainingSet(
                    pairs.pixels, tokens[:, None], torch.zeros(len(tokens), len(train_demo.FACTS))
                ),
                samples=self._setting.start_samples,
                batch_size=128,
                learning_rate=2e-3,
                muon_rate=5e-3,
                facts_weight=0.0,
                seed=0,
            )
            torch.save(model.state_dict(), path)
        return estimator


def estimator_of(model: nn.Module) -> Estimator:
    """The model in the machine's precision; it keeps copies of the weights, so one for each use."""
    return Estimator(model, open_clip.tokenizer.SimpleTokenizer(), PREPROCESSING, precision="auto")


def train_on(
    pairs: Pairs,
    estimator: Estimator,
    method: str,
    options: ObjectiveOptions,
    setting: Setting,
    seed: int,
    folder: Path,
) -> Objective:
    """Train the estimator's model in place, as `ncclean finetune` does; the objective."""
    objective = make_objective(method, options, estimator.tokenize)
    loader = cast(WeightedLoader, MemoryLoader(pairs, setting.batch_size, seed))
    frozen = method == "disncl" and options.disncl.freeze_towers
    trainer = Trainer(
        estimator,
        objective,
        CachedFeatures(estimator, loader, setting.batch_size, seed) if frozen else loader,
        TrainOptions(seed=seed, tensorboard=False, save_minutes=1e6),
        folder,
    )
    trainer.run()
    return objective


def treat(arm: Arm, seed: int, setting: Setting, corpora: Corpora, folder: Path) -> nn.Module:
    """The start after the arm's training; with DisNCL, in the invariant space."""
    estimator = corpora.start(arm.start)
    if arm.method is None:
        return estimator.model
    pairs = corpora.pairs(arm.noise)
    if arm.selection is not None:
        pairs = pairs.chosen(corpora.selection(arm.noise, arm.selection))
    epochs, rate = setting.epochs, setting.learning_rate
    if arm.method == "disncl":
        epochs, rate = _DISNCL_EPOCHS, _DISNCL_RATE
    elif arm.method == "ncu":
        epochs -= setting.prompt_epochs
    elif arm.selection == "clean":  # as many samples as the others see
        epochs = round(epochs * setting.pairs / len(pairs.uids))
    options = ObjectiveOptions(
        learning_rate=rate,
        epochs=epochs,
        prompt_epochs=setting.prompt_epochs,
        ncu=NcuOptions(**{"forget_percent": 100 * arm.noise, **arm.ncu}),
        **arm.options,
    )
    objective = train_on(pairs, estimator, arm.method, options, setting, seed, folder)
    if arm.method != "disncl":
        return estimator.model
    cast(Saved, objective).save(folder)
    return headed(estimator.model, folder, "invariant")


def run(table: str, seeds: int, setting: Setting, folder: Path) -> list[dict[str, Any]]:
    """All runs of a table that are not in `results.jsonl` yet; its records."""
    log = folder / "results.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    settings = dataclasses.asdict(setting)
    done = {(each["arm"], each["seed"]) for each in records if each["setting"] == settings}
    corpora = Corpora(folder, setting)
    held_out: HeldOut | None = None
    for seed in range(seeds):
        for arm in TABLES[table]:
            if (arm.name, seed) in done:
                continue
            start = time.perf_counter()
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                model = treat(arm, seed, setting, corpora, Path(scratch))
            seconds = time.perf_counter() - start
            held_out = held_out or HeldOut()
            record = {
                "arm": arm.name,
                "seed": seed,
                "setting": settings,
                "seconds": round(seconds),
                **held_out.measure(estimator_of(model)),
            }
            records.append(record)
            with log.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)
    return [each for each in records if each["setting"] == settings]


def bundle(setting: Setting, folder: Path, out: Path) -> None:
    """Write the patient as the bundled model `demo-noisy`, with a card."""
    corpora = Corpora(folder, setting)
    patient = corpora.start(PATIENT)
    model = cast(CLIP, patient.model)
    tokens = patient.tokenize(corpora.pairs(PATIENT_NOISE).captions)
    unused = torch.ones(len(model.token_embedding.weight), dtype=torch.bool)
    unused[tokens.unique()] = False
    with torch.no_grad():  # rows that training never touched: zeros compress to nothing
        model.token_embedding.weight[unused] = 0
        model.positional_embedding[int(token_lengths(tokens).max()) :] = 0
    train_demo.save(
        model.half().float(),
        out,
        train_demo.evaluate(model, seed=0),
        {
            "scenes": f"the {setting.pairs:,} of `ncclean synth --pairs {setting.pairs} --noise "
            f"{PATIENT_NOISE}`, one caption each",
            "captions permuted": f"{PATIENT_NOISE:.0%}",
            "samples seen": f"{setting.start_samples:,}: enough to learn the noise by heart",
            "objective": "CLIP loss, batch 128, Muon and AdamW, bf16 autocast",
            "made by": "`python tests/benchmarks/repair.py --bundle`",
            "vocabulary rows kept": int((~unused).sum()),
        },
        PATIENT_CONFIG,
    )


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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of corpora and results")
    parser.add_argument("--table", choices=list(TABLES), default="repair")
    parser.add_argument("--bundle", type=Path, help="write the patient here instead, and its card")
    parser.add_argument("--seeds", type=int, default=3)
    for each in dataclasses.fields(Setting):
        default = DEFAULTS[each.name]
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(default), default=default)
    arguments = parser.parse_args()
    setting = Setting(**{name: getattr(arguments, name) for name in DEFAULTS})
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.bundle is not None:
        bundle(setting, arguments.out, arguments.bundle)
        return
    records = run(arguments.table, arguments.seeds, setting, arguments.out)
    print("\n".join(table_lines(arguments.table, records)))


if __name__ == "__main__":
    main()
