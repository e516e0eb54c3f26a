"""What the runs of `repair.py` start from: corpora, models, score tables and selections, kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import open_clip
import pyarrow.parquet as pq
import torch
from artefacts import Artefacts, found, source_digest
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file
from torch import nn

import ncclean
from ncclean.base.config import ScoreOptions
from ncclean.data import caption_noise, noise
from ncclean.data.decode import Preprocessing
from ncclean.data.options import LoaderOptions
from ncclean.data.shards import resolve_shards
from ncclean.data.synthetic import captions, corpus, render, scene
from ncclean.data.synthetic.corpus import CorpusOptions, write_corpus
from ncclean.data.weighted_loader import LoaderCounts, TrainBatch, WeightedLoader
from ncclean.models.checkpoint import WEIGHTS_NAME, resolve
from ncclean.models.estimator import Estimator
from ncclean.models.model_config import CONFIG_NAME
from ncclean.models.text_tower import token_lengths
from ncclean.selection.policy import Policy
from repair import halves as repair_halves
from repair import train_demo
from repair.arms import Arm, Setting, Start

# 16 px patches: a quarter of the cost of the bundled models, which have 8 px.
MODEL_CONFIG: dict[str, Any] = {
    "embed_dim": 128,
    "vision_cfg": {
        "image_size": 64,
        "layers": 4,
        "width": 128,
        "head_width": 64,
        "patch_size": 16,
        "pool_type": "avg",
    },
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 2},
}
PREPROCESSING = Preprocessing((64, 64), (0.5,) * 3, (0.5,) * 3)
START_TRAINING = {"batch_size": 128, "learning_rate": 2e-3, "muon_rate": 5e-3}
# Corpora of other seeds than those that are repaired: the scenes that clean starts have seen.
_OTHER_SCENES = 1000
_BUNDLED = "demo-noisy"
_POLICIES = {
    "selected": Policy(method="noise-probability"),
    "weighted": Policy(weights="osa_weight"),
    "split": Policy(method="ncu", with_forget=True),
}
_RENDERER = source_digest(caption_noise, noise, captions, corpus, render, scene)


@dataclass(frozen=True)
class Pairs:
    """Decoded pairs in memory: pixels (N, 3, 64, 64) uint8, the truth, weights and forget marks."""

    pixels: torch.Tensor
    captions: list[str]
    uids: list[str]
    weights: torch.Tensor
    is_forget: torch.Tensor
    is_noisy: torch.Tensor

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def noisy_share(self) -> float:
        return float((self.is_noisy == 1).float().mean())

    def rows(self, rows: torch.Tensor) -> Pairs:
        """The pairs of these rows."""
        return Pairs(
            self.pixels[rows],
            [self.captions[row] for row in rows],
            [self.uids[row] for row in rows],
            self.weights[rows],
            self.is_forget[rows],
            self.is_noisy[rows],
        )

    def chosen(self, selection: Path) -> Pairs:
        """The selected pairs with their weights and forget marks."""
        table = pq.read_table(selection)
        place = {uid: row for row, uid in enumerate(self.uids)}
        pairs = self.rows(torch.tensor([place[uid] for uid in table.column("uid").to_pylist()]))
        split = table.column("split").to_pylist()
        return Pairs(
            pairs.pixels,
            pairs.captions,
            pairs.uids,
            torch.tensor(table.column("weight").to_pylist()),
            torch.tensor([each == "forget" for each in split]),
            pairs.is_noisy,
        )


class MemoryLoader:
    """Batches of `Pairs`, in an order of their own each epoch."""

    def __init__(self, pairs: Pairs, batch_size: int, seed: int) -> None:
        self._pairs, self._batch_size, self._seed = pairs, batch_size, seed
        self.steps_per_epoch = len(pairs) // batch_size
        self.counts = LoaderCounts()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[TrainBatch]:
        order = torch.Generator().manual_seed(1000 * self._seed + epoch)
        rows = torch.randperm(len(self._pairs), generator=order)
        for step in range(first_step, self.steps_per_epoch):
            batch = self._pairs.rows(rows[step * self._batch_size : (step + 1) * self._batch_size])
            yield TrainBatch(
                batch.pixels, batch.captions, batch.uids, batch.weights, batch.is_forget
            )


class Corpora:
    """Corpora by noise and seed, with the models, score tables and selections made of them."""

    def __init__(self, folder: Path, setting: Setting) -> None:
        self._artefacts = Artefacts(folder)
        self._setting = setting
        self._decoded: dict[Path, Pairs] = {}

    def corpus_facts(self, noise: Mapping[str, float], seed: int) -> dict[str, Any]:
        """What determines a corpus."""
        return {
            "pairs": self._setting.pairs,
            "noise": dict(noise),
            "seed": seed,
            "renderer": _RENDERER,
        }

    def start_facts(self, start: Start, noise: Mapping[str, float], seed: int) -> dict[str, Any]:
        """What determines a model to start from."""
        if start == "bundled":
            return {"bundled": judge_facts(_BUNDLED, {})}
        return {
            "corpus": self.corpus_facts(noise, seed)
            if start == "noisy"
            else self.corpus_facts({}, _OTHER_SCENES + seed),
            "model": MODEL_CONFIG,
            "samples": self._setting.start_samples,
            **START_TRAINING,
            "training_loop": source_digest(train_demo.train),
            "torch": torch.__version__,
            "seed": seed,
        }

    def shards(self, facts: Mapping[str, Any]) -> Path:
        """Rendered shards."""

        def make(folder: Path) -> None:
            options = CorpusOptions(pairs=facts["pairs"], noise=facts["noise"], seed=facts["seed"])
            # One process: others would import torch anew, which takes longer than to render.
            write_corpus(folder, options, workers=1)

        return self._artefacts.get("shards", facts, make)

    def pairs(self, facts: Mapping[str, Any]) -> Pairs:
        """All pairs of a corpus; the last two corpora stay in memory."""
        shards = self.shards(facts)
        if shards not in self._decoded:
            while len(self._decoded) > 1:
                self._decoded.pop(next(iter(self._decoded)))
            self._decoded[shards] = decoded([shards], PREPROCESSING)
        return self._decoded[shards]

    def start(self, facts: Mapping[str, Any]) -> Path:
        """The folder of a CLIP that has learnt from its corpus as it is, in open_clip's layout."""
        if "bundled" in facts:
            return _folder(_BUNDLED)

        def make(folder: Path) -> None:
            save_model(self._trained(facts), folder)

        return self._artefacts.get("start", facts, make)

    def scores(self, judge: str, start: Mapping[str, Any], corpus: Mapping[str, Any]) -> Path:
        """Score tables of a corpus by a bundled judge, the start `itself`, or `halves` of it."""
        facts, forget = self._score_facts(judge, start, corpus)
        options = ScoreOptions(forget_percent=forget)

        def make(folder: Path) -> Mapping[str, Any]:
            rates, weights = [], []
            for number, (model, shards) in enumerate(self._judges(judge, start, corpus, folder)):
                out = str(folder / f"scores-{number}.parquet")
                names = [str(shard) for shard in shards]
                summary = Score(shards=names, out=out, model=model, options=options).run().summary
                rates.append(summary.noise_rate.value)
                weights.append(summary.rows)
            known = [(r, w) for r, w in zip(rates, weights, strict=True) if not math.isnan(r)]
            rate = sum(r * w for r, w in known) / sum(w for _, w in known) if known else None
            return {"noise_rate": rate}

        return self._artefacts.get("scores", facts, make)

    def _judges(
        self, judge: str, start: Mapping[str, Any], corpus: Mapping[str, Any], folder: Path
    ) -> Iterator[tuple[str, list[Path]]]:
        """Models, each with the shards that it judges."""
        if judge != "halves":
            yield (
                f"local-dir:{self.start(start)}" if judge == "itself" else judge,
                [self.shards(corpus)],
            )
            return
        shards = sorted(self.shards(corpus).glob("*.tar"))
        middle = len(shards) // 2
        for number, (own, other) in enumerate(
            ((shards[:middle], shards[middle:]), (shards[middle:], shards[:middle]))
        ):
            estimator = load_model(self.start(start))
            loader = MemoryLoader(
                decoded(own, PREPROCESSING), repair_halves.BATCH_SIZE, start["seed"]
            )
            repair_halves.go_on(estimator, cast(WeightedLoader, loader), start["seed"])
            copy = folder / f"half-{number}"
            copy.mkdir()
            save_model(estimator.model, copy)
            yield f"local-dir:{copy}", other

    def selection(
        self, kind: str, judge: str, start: Mapping[str, Any], corpus: Mapping[str, Any]
    ) -> Path:
        """The pairs of a policy over a score table."""
        scores = self.scores(judge, start, corpus)
        facts = {
            "scores": self._score_facts(judge, start, corpus)[0],
            "policy": repr(_POLICIES[kind]),
        }

        def make(folder: Path) -> Mapping[str, Any]:
            out = str(folder / "selection.parquet")
            tables = [str(table) for table in sorted(scores.glob("scores-*.parquet"))]
            summary = Select(scores=tables, out=out, policy=_POLICIES[kind]).run().summary
            return {"kept": summary.kept, "rows": summary.rows}

        return self._artefacts.get(kind, facts, make) / "selection.parquet"

    def estimated_noise(
        self, judge: str, start: Mapping[str, Any], corpus: Mapping[str, Any]
    ) -> float | None:
        """The noise rate that a score table estimates; None where it estimates none."""
        rate: float | None = found(self.scores(judge, start, corpus))["noise_rate"]
        return rate

    def for_arm(self, arm: Arm, start: Mapping[str, Any], corpus: Mapping[str, Any]) -> Pairs:
        """The pairs that an arm trains on."""
        if arm.pairs == "repaired":
            return self.pairs({**corpus, "noise": {}})
        pairs = self.pairs(corpus)
        if arm.pairs == "all":
            return pairs
        if arm.pairs == "told":
            return dataclasses.replace(pairs, is_forget=pairs.is_noisy == 1)
        if arm.pairs == "clean":
            return pairs.rows((pairs.is_noisy == 0).nonzero()[:, 0])
        return pairs.chosen(self.selection(arm.pairs, arm.judge, start, corpus))

    def _score_facts(
        self, judge: str, start: Mapping[str, Any], corpus: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float]:
        """What determines a score table, and the percentage of its forget set: the true share."""
        forget = 100 * self.pairs(corpus).noisy_share
        facts = {
            "corpus": dict(corpus),
            "judge": judge_facts(judge, start),
            "forget_percent": round(forget, 4),
            "ncclean": ncclean.__version__,
        }
        return facts, forget

    def _trained(self, facts: Mapping[str, Any]) -> CLIP:
        torch.manual_seed(facts["seed"])
        model = CLIP(**MODEL_CONFIG)
        pairs = self.pairs(facts["corpus"])
        tokens = open_clip.tokenizer.SimpleTokenizer()(pairs.captions)
        tokens = tokens[:, : int(token_lengths(tokens).max())]
        no_facts = torch.zeros(len(tokens), len(train_demo.FACTS))
        train_demo.train(
            model,
            train_demo.TrainingSet(pairs.pixels, tokens[:, None], no_facts),
            samples=facts["samples"],
            facts_weight=0.0,
            seed=facts["seed"],
            **START_TRAINING,
        )
        return model


def save_model(model: nn.Module, folder: Path) -> None:
    """As `local-dir:` of open_clip, in float32."""
    preprocessing = {"mean": PREPROCESSING.mean, "std": PREPROCESSING.std}
    config = {
        "model_cfg": MODEL_CONFIG,
        "preprocess_cfg": {
            **preprocessing, "interpolation": "bicubic", "resize_mode": "shortest"
        },
    }  # fmt: skip
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS_NAME)


def load_model(folder: Path) -> Estimator:
    """A model of `save_model`, to train or to measure."""
    model = CLIP(**MODEL_CONFIG)
    model.load_state_dict(load_file(folder / WEIGHTS_NAME))
    return estimator_of(model)


def estimator_of(model: nn.Module) -> Estimator:
    """The model in the machine's precision; it keeps copies of the weights, so one for each use."""
    return Estimator(model, open_clip.tokenizer.SimpleTokenizer(), PREPROCESSING, precision="auto")


def judge_facts(judge: str, start: Mapping[str, Any]) -> dict[str, Any]:
    """The start `itself`, or a bundled model by its name and a hash of its weights."""
    if judge == "itself":
        return dict(start)
    if judge == "halves":
        return {**start, "halves": repair_halves.FACTS}
    weights = hashlib.sha256((_folder(judge) / WEIGHTS_NAME).read_bytes()).hexdigest()
    return {"model": judge, "weights": weights[:10]}


def _folder(bundled: str) -> Path:
    folder = resolve(bundled, None).folder
    assert folder is not None
    return folder


def decoded(shards: Sequence[Path], preprocessing: Preprocessing) -> Pairs:
    """All pairs of shards, with the truth that their json has."""
    loader = WeightedLoader(
        resolve_shards([str(shard) for shard in shards]),
        None,
        preprocessing,
        LoaderOptions(shuffle=False, augment=False, drop_last=False),
    )
    batches = list(loader.epoch(0))
    truth = [batch.is_noisy for batch in batches if batch.is_noisy is not None]
    return Pairs(
        torch.cat([batch.pixels for batch in batches]),
        [caption for batch in batches for caption in batch.captions],
        [uid for batch in batches for uid in batch.uids],
        torch.cat([batch.weights for batch in batches]),
        torch.cat([batch.is_forget for batch in batches]),
        torch.cat(truth),
    )
