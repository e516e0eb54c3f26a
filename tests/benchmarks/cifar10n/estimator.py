"""The estimator that has not seen the photographs it scores, with which every study here begins."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path

# OpenMP's workers spin while they wait, which takes the cores from others; `ncclean` sets it too.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from ncclean_pipelines.finetune import Finetune

from cifar10n.corpora import MODEL_CONFIG, Row, parts, write_corpus
from ncclean.data.options import LoaderOptions
from ncclean.training.objectives.options import ObjectiveOptions
from ncclean.training.options import TrainOptions


@dataclass(frozen=True)
class Beginning:
    """The images of `parts`, and the name of the model that was trained on the first of them."""

    learnt: list[Row]
    scored: list[Row]
    held_out: list[Row]
    model: str

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Beginning:
        """Train the estimator, or take the one of an earlier run out of `--out`."""
        out, seed = arguments.out, arguments.seed
        out.mkdir(parents=True, exist_ok=True)
        learnt, scored, held_out = parts(arguments.data, seed)
        write_corpus(learnt, "clean", arguments.data, out / "learnt", seed)
        model = train(out / "learnt", arguments.passes, out / "est", seed)
        return cls(learnt, scored, held_out, model)

    def settings(self) -> dict[str, int]:
        """The number of images of each kind, for the record."""
        return {
            "learnt": len(self.learnt),
            "scored": len(self.scored),
            "held_out": len(self.held_out),
        }


def train(shards: Path, epochs: int, out: Path, seed: int) -> str:
    """Train from random weights, as anybody would; the model's name."""
    config = out.parent / "model.json"
    if not config.exists():  # its time is part of what the training goes on from
        config.write_text(json.dumps(MODEL_CONFIG))
    Finetune(
        method="clip",
        shards=[str(shards)],
        out=str(out),
        model=str(config),
        init="random",
        batch_size=128,
        objective=ObjectiveOptions(epochs=epochs, learning_rate=1e-3),
        training=TrainOptions(weight_decay=0.05),
        loader=LoaderOptions(augment=False, decode_threads=1),
        precision="fp32",
        seed=seed,
    ).run()
    return f"local-dir:{out}"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that every study here has."""
    options = argparse.ArgumentParser(description=doc.split("\n")[0] if doc else None)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--passes", type=int, default=8, help="of the estimator's training")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--record", type=Path)
    return options
