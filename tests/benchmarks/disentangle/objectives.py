"""Can DisNCL's losses take apart what they should? On features whose parts are known.

    python tests/benchmarks disentangle.objectives [--arms NAME ...] [--seeds 0 1 2]
        [--out RECORD.json] [--set NAME=VALUE ...] [--epochs 10] [--pairs 4000] [--workers 2]

Features of an image and of a caption are random nonlinear mixtures of six facts that both have and
of three that each has alone, four values each, and a little noise; 40 % of the pairs are
mismatched. No tower can lose a fact here, as a CLIP model does with what captions never say: what
the halves hold afterwards is the losses' doing alone. The heads train as with `finetune
--freeze-towers`. Then, on 2,000 new pairs: how well linear probes read each kind of fact from each
part (0 is chance), which share of a part's variance each kind explains, retrieval, and information
between the halves. `ARMS` are the objectives to compare; an arm is trained once for each seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from machine import machine_facts
from ncclean_pipelines.command import build
from ncclean_pipelines.finetune import Finetune
from records import CODE_VERSION, command_line

from disentangle.mine import mutual_information
from disentangle.report import (
    PARTS,
    explained,
    fitted_recall,
    head_parts,
    in_space,
    leading_components,
    probe,
)
from ncclean.base.option_values import parse_settings
from ncclean.base.options import parameters
from ncclean.data.weighted_loader import LoaderCounts, TrainBatch
from ncclean.evaluation.ranking import recall_at_k
from ncclean.models.estimator import Estimator
from ncclean.models.heads import SPACES
from ncclean.training.feature_cache import CachedFeatures
from ncclean.training.objectives.base import Embeddings, GlobalBatch, Phase, Terms
from ncclean.training.objectives.disncl import filtered
from ncclean.training.objectives.disncl_objective import Disncl
from ncclean.training.options import TrainOptions
from ncclean.training.trainer import Trainer

DIM, VALUES, CODE = 128, 4, 8
KINDS = {"shared": 6, "image only": 3, "caption only": 3}
HELD_OUT, NOISE, BATCH = 2_000, 0.4, 128
SIDES = {"image": "image only", "text": "caption only"}


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

    def __init__(self, known: Known, batch_size: int, seed: int) -> None:
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
        self._batch_size, self._seed, self.samples = batch_size, seed, count
        self.steps_per_epoch = count // batch_size


class RawDistance(Disncl):
    """The compression of raw halves beside discriminators that see directions: a control.

    Short halves satisfy it, and no other term sees their length.
    """

    def terms(
        self, embeddings: Embeddings, scale: torch.Tensor, batch: GlobalBatch, phase: Phase
    ) -> Terms:
        """Those of DisNCL, the compression replaced."""
        terms = super().terms(embeddings, scale, batch, phase)
        if "compression" in terms:
            _, clean = filtered(embeddings)
            apart = embeddings["image_invariant"] - embeddings["text_invariant"]
            squared = apart[clean].square().sum() / max(1, int(clean.sum()))
            terms["compression"] = self.options.gamma * self.options.beta1 * squared
        return terms


@dataclasses.dataclass(frozen=True)
class Arm:
    """An objective to compare: options that differ from the defaults."""

    options: Mapping[str, Any]
    objective: type[Disncl] = Disncl


_STRONG = {"bounded_adversary": True, "gamma": 0.1, "beta2": 1.0, "discriminator_steps": 3}
ARMS = {
    "information": Arm({}),
    "bounded adversary": Arm({"bounded_adversary": True}),
    "stronger opponents": Arm(_STRONG),
    "raw": Arm({"discriminator_input": "raw"}),
    "reconstruction": Arm({"disentangle": "reconstruction"}),
    "none": Arm({"disentangle": "none"}),
    **{f"beta1 {beta1:g}": Arm({"beta1": beta1}) for beta1 in (0.0, 1.0, 10.0)},
    **{
        f"raw distance, beta1 {beta1:g}": Arm({"beta1": beta1}, RawDistance) for beta1 in (0.1, 1.0)
    },
}


def parser_of(description: str) -> argparse.ArgumentParser:
    """The arguments of this script and of `disentangle.clip`."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["information"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, as in a recipe")
    parser.add_argument("--epochs", type=int, default=10, help="of phase two")
    parser.add_argument("--pairs", type=int, default=4_000)
    parser.add_argument("--workers", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--out", type=Path, help="record to write, as JSON")
    return parser


def main() -> None:
    arguments = parser_of(__doc__ or "").parse_args()
    record = facts_of_run(arguments)
    held_out = World().pairs(HELD_OUT, 0.0, 2)
    record["features"] = contents({side: getattr(held_out, side) for side in SIDES}, held_out)
    run_arms(record, measured_row, arguments)
    print("\n".join(table(record)))


def run_arms(
    record: dict[str, Any],
    measure: Callable[[str, int, argparse.Namespace], dict[str, Any]],
    arguments: argparse.Namespace,
) -> None:
    """Fill in the record's rows, each arm with each seed; write it after each one."""
    record["rows"] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, context, torch.set_num_threads, (1,)) as workers:
        futures = [
            workers.submit(measure, arm, seed, arguments)
            for seed in arguments.seeds
            for arm in arguments.arms
        ]
        for future in futures:
            row = future.result()
            print(f"{row['arm']}, seed {row['seed']}: {row['seconds']} s", file=sys.stderr)
            record["rows"].append(row)
            if arguments.out:
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                arguments.out.write_text(json.dumps(record, indent=1) + "\n")


def measured_row(arm: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train an arm with a seed of its own pairs, order and start; measure it."""
    start = time.perf_counter()
    world = World()
    training = world.pairs(arguments.pairs, NOISE, 1_000 + seed)
    objective = trained(arm, training, seed, arguments)
    values = lengths(objective, training) | measured(objective, world.pairs(HELD_OUT, 0.0, 2))
    return row_of(arm, seed, time.perf_counter() - start, objective.statistics() | values)


def row_of(arm: str, seed: int, seconds: float, values: Mapping[str, float]) -> dict[str, Any]:
    """A row of a record."""
    return {
        "arm": arm,
        "options": dict(ARMS[arm].options),
        "seed": seed,
        "seconds": round(seconds),
        "values": {name: round(value, 4) for name, value in values.items()},
    }


def facts_of_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the figures of a record depend on."""
    return {
        "command": command_line(),
        **CODE_VERSION,
        "date": datetime.date.today().isoformat(),
        "machine": machine_facts(),
        "workers": arguments.workers,
        "pairs": arguments.pairs,
        "held_out": HELD_OUT,
        "noise": NOISE,
        "batch_size": BATCH,
        "epochs": arguments.epochs,
        "seeds": arguments.seeds,
        "settings": arguments.set,
    }


def trained(arm: str, pairs: Known, seed: int, arguments: argparse.Namespace) -> Disncl:
    """The objective of an arm after training its heads on the pairs."""
    unused = {"method": "disncl", "shards": [], "out": "unused"}
    given = parse_settings(parameters(Finetune), arguments.set, "finetune")
    command = build(Finetune, {**unused, **given})
    options = dataclasses.replace(
        command.objective_options.disncl, freeze_towers=True, **ARMS[arm].options
    )
    objective = ARMS[arm].objective(options, learning_rate=5e-4, epochs=arguments.epochs)
    with tempfile.TemporaryDirectory() as folder:
        # The towers of this model are never used; its embeddings have the right length.
        Trainer(
            Estimator.load("demo", None),
            objective,
            KnownFeatures(pairs, BATCH, seed),
            TrainOptions(tensorboard=False, save_minutes=1e6, seed=seed),
            Path(folder),
        ).run()
    return objective


def halves(objective: Disncl, known: Known) -> dict[str, torch.Tensor]:
    """The parts of pairs by the heads of the objective."""
    heads = objective._heads
    assert heads is not None
    return head_parts(heads.eval(), known.image, known.text)


def lengths(objective: Disncl, known: Known) -> dict[str, float]:
    """Cosine and mean lengths of the halves of the clean pairs of the training set."""
    clean = known.is_noisy == 0
    parts = {name: part[clean] for name, part in halves(objective, known).items()}
    image, text = (parts[f"{side}_invariant"] for side in SIDES)
    exclusive = torch.cat([parts[f"{side}_exclusive"] for side in SIDES])
    return {
        "cosine/clean": float(F.cosine_similarity(image, text).mean()),
        "length/invariant": float(torch.cat([image, text]).norm(dim=1).mean()),
        "length/exclusive": float(exclusive.norm(dim=1).mean()),
        "distance/clean": float((image - text).square().sum(dim=1).mean()),
    }


def measured(objective: Disncl, known: Known) -> dict[str, float]:
    """Probes, shares of variance, retrieval and information of held-out pairs, by name."""
    parts = halves(objective, known)
    values = contents({name: parts[name] for name in PARTS if name not in SIDES}, known)
    for space in SPACES:
        image, text = (
            in_space(parts[f"{side}_invariant"], parts[f"{side}_exclusive"], space)
            for side in SIDES
        )
        recalls = recall_at_k(image, text, torch.arange(len(image)), ks=(1,))
        both = (recalls["image_to_text_R@1"], recalls["text_to_image_R@1"])
        values[f"recall/{space}"] = statistics.mean(both)
    values["recall/exclusive, fitted"] = fitted_recall(
        parts["image_exclusive"], parts["text_exclusive"]
    )
    for side in SIDES:
        values[f"information/{side}"] = mutual_information(
            parts[f"{side}_invariant"], parts[f"{side}_exclusive"]
        )
    return values


def contents(parts: Mapping[str, torch.Tensor], known: Known) -> dict[str, float]:
    """How well the facts of its side are read from each part, and how much of it they are."""
    values = {}
    for name, part in parts.items():
        reduced = leading_components(part.numpy())
        for kind, facts in (("shared", "shared"), ("own", SIDES[name.split("_")[0]])):
            labels = known.facts[facts].numpy()
            read = statistics.mean(probe(reduced, column) for column in labels.T)
            values[f"probe/{kind}/{name}"] = round(read, 4)
            values[f"variance/{kind}/{name}"] = round(explained(part.numpy(), labels), 4)
    return values


def table(record: Mapping[str, Any]) -> list[str]:
    """Mean and standard deviation over seeds of every value, by arm, as Markdown."""
    arms = list(dict.fromkeys(row["arm"] for row in record["rows"]))
    lines = ["| | " + " | ".join(arms) + " |", "|---|" + "---|" * len(arms)]
    for name in record["rows"][0]["values"]:
        columns = []
        for arm in arms:
            found = [row["values"][name] for row in record["rows"] if row["arm"] == arm]
            spread = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
            columns.append(f"{statistics.mean(found):.3f}{spread}")
        lines.append(f"| {name} | " + " | ".join(columns) + " |")
    return lines


if __name__ == "__main__":
    main()
