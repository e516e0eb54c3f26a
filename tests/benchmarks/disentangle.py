"""Can DisNCL's losses take apart what they should? On features whose parts are known.

    python tests/benchmarks/disentangle.py [--set NAME=VALUE ...] [--epochs 10]

Features of an image and of a caption are random nonlinear mixtures of six facts that both have and
of three that each has alone, four values each, and a little noise; 40 % of 16,000 pairs are
mismatched. No tower can lose a fact here, as a CLIP model does with what captions never say: what
the halves hold afterwards is the losses' doing alone. The heads train as with `finetune
--freeze-towers`. Then, on 2,000 new pairs: how well linear probes read each kind of fact from each
part (0 is chance), and which share of a part's variance each kind explains.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from pathlib import Path

import torch
from ncclean_pipelines.command import build, parse_settings
from ncclean_pipelines.finetune import Finetune

from ncclean.data.weighted_loader import LoaderCounts, TrainBatch
from ncclean.evaluation.disentanglement import (
    PARTS,
    explained,
    head_parts,
    leading_components,
    probe,
)
from ncclean.evaluation.mine import mutual_information
from ncclean.evaluation.retrieval import recall_at_k
from ncclean.models.estimator import Estimator
from ncclean.models.heads import SPACES, in_space
from ncclean.training.feature_cache import CachedFeatures
from ncclean.training.objectives.disncl_objective import Disncl
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer

DIM, VALUES, CODE = 128, 4, 8
KINDS = {"shared": 6, "image only": 3, "caption only": 3}
PAIRS, HELD_OUT, NOISE, BATCH = 16_000, 2_000, 0.4, 256


@dataclasses.dataclass(frozen=True)
class Known:
    """(N, DIM) features of both sides, (N, count) facts by kind, and which pairs are mismatched."""

    image: torch.Tensor
    text: torch.Tensor
    facts: dict[str, torch.Tensor]
    is_noisy: torch.Tensor


class World:
    """Codes of the facts' values and the two mixtures, fixed; pairs on request."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        self._codes = {kind: normal(count, VALUES, CODE) for kind, count in KINDS.items()}
        self._mixtures = {}
        for side in ("image only", "caption only"):
            length = CODE * (KINDS["shared"] + KINDS[side])
            self._mixtures[side] = normal(length, 256) / length**0.5, normal(256, DIM) / 16

    def pairs(self, count: int, noise: float, seed: int) -> Known:
        generator = torch.Generator().manual_seed(seed)
        facts = {
            kind: torch.randint(VALUES, (count, facts), generator=generator)
            for kind, facts in KINDS.items()
        }

        def features(side: str) -> torch.Tensor:
            codes = [
                self._codes[kind][number, facts[kind][:, number]]
                for kind in ("shared", side)
                for number in range(KINDS[kind])
            ]
            inner, outer = self._mixtures[side]
            mixed = torch.tanh(2 * torch.cat(codes, dim=1) @ inner) @ outer
            return mixed + 0.05 * torch.randn(mixed.shape, generator=generator)

        image, text = features("image only"), features("caption only")
        is_noisy = torch.arange(count) < int(noise * count)
        text[is_noisy] = text[is_noisy].roll(1, dims=0)
        return Known(image, text, facts, is_noisy.to(torch.int8))


class KnownFeatures(CachedFeatures):
    """Pairs as if towers had encoded them."""

    def __init__(self, known: Known, batch_size: int) -> None:
        count = len(known.image)
        self._all = TrainBatch(
            pixels=torch.empty(0),
            captions=[""] * count,
            uids=[f"{row:032x}" for row in range(count)],
            weights=torch.ones(count),
            is_forget=torch.zeros(count, dtype=torch.bool),
            is_noisy=known.is_noisy,
            features=(known.image.half(), known.text.half()),
        )
        self.counts = LoaderCounts()
        self._batch_size, self._seed, self.samples = batch_size, 0, count
        self.steps_per_epoch = count // batch_size


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, as in a recipe")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    unused = {"method": "disncl", "shards": [], "out": "unused"}
    command = build(Finetune, {**unused, **parse_settings(Finetune, arguments.set)})
    options = dataclasses.replace(command.objective_options.disncl, freeze_towers=True)
    world = World()
    objective = Disncl(options, learning_rate=5e-4, epochs=arguments.epochs)
    with tempfile.TemporaryDirectory() as folder:
        # The towers of this model are never used; its embeddings have the right length.
        Trainer(
            Estimator.load("demo", None),
            objective,
            KnownFeatures(world.pairs(PAIRS, NOISE, 1), BATCH),
            TrainOptions(tensorboard=False, save_minutes=1e6),
            Path(folder),
        ).run()
    print(", ".join(f"{name} {value:.3f}" for name, value in objective.statistics().items()))
    report(objective, world.pairs(HELD_OUT, 0.0, 2))


def report(objective: Disncl, known: Known) -> None:
    """Probes, retrieval and information, as Markdown."""
    heads = objective._heads
    assert heads is not None
    parts = head_parts(heads.eval(), known.image, known.text)
    print("| facts | " + " | ".join(name.replace("_", " ") for name in PARTS) + " |")
    print("|---|" + "---|" * len(PARTS))
    reduced = {name: leading_components(parts[name].numpy()) for name in PARTS}
    for kind, labels in known.facts.items():
        cells = []
        for name in PARTS:
            read = statistics.mean(probe(reduced[name], column.numpy()) for column in labels.T)
            cells.append(f"{read:.2f}, {explained(parts[name].numpy(), labels.numpy()):.0%}")
        print(f"| {kind} | " + " | ".join(cells) + " |")
    for space in SPACES:
        image, text = (
            in_space(parts[f"{side}_invariant"], parts[f"{side}_exclusive"], space)
            for side in ("image", "text")
        )
        recalls = recall_at_k(image, text, torch.arange(HELD_OUT), ks=(1,))
        print(f"recall at 1, {space}: {recalls['image_to_text_R@1']:.1%}")
    for side in ("image", "text"):
        found = mutual_information(parts[f"{side}_invariant"], parts[f"{side}_exclusive"])
        print(f"information between the {side} halves: {found:.2f} nats")


if __name__ == "__main__":
    main()
