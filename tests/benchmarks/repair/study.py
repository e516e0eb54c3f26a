"""What the objectives do to a model that has learnt noise: the tables of docs/results.

    python tests/benchmarks repair.study --out runs/ [--table repair] [--corpora 3]
        [--noise ncr=0.4] [--arms REGEX] [--record docs/records/repair.json]

Corpus r is rendered with seed r and spoilt as `--noise` says. A small CLIP is trained on it from
random weights: the model to repair. Every arm of `repair.arms` goes on from that model with the
same number of optimiser steps, and all are measured on held-out scenes. Tables `robust`, `prior`
and `disncl` ask what noise does to a model that has none yet: they start from one that has learnt
from other, clean pairs. Seed r also belongs to both trainings, so that corpora, models and
orders of the pairs vary together.

What lies in `--out` is not made again; processes with one `--corpus` each may work side by side.
`--bundle FOLDER` writes the model to repair of corpus 0 as the bundled `demo-noisy`, and its card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import torch
from arms import LEFT_ALONE, Arm, selected
from corpora import once, rendered, samples_of
from ncclean_pipelines.score import Score
from open_clip.model import CLIP
from records import Row, benchmark
from study_tables import noise_name

from ncclean.data.decode import ImageDecoder
from ncclean.data.noise import parse_rates
from ncclean.models.estimator import Estimator
from ncclean.models.text_tower import token_lengths
from repair import train_demo
from repair.arms import TABLES, Table
from repair.heldout import HeldOut

# 16 px patches: a quarter of the cost of the bundled models, which have 8 px.
MODEL_CONFIG: dict[str, Any] = {
    **train_demo.MODEL_CONFIG,
    "vision_cfg": {**train_demo.MODEL_CONFIG["vision_cfg"], "patch_size": 16},
    "text_cfg": {**train_demo.MODEL_CONFIG["text_cfg"], "layers": 2},
}
_START = {"batch_size": 128, "learning_rate": 2e-3, "muon_rate": 5e-3, "facts_weight": 0.0}
# Corpora of other seeds than those that are repaired: the scenes that clean starts have seen.
_OTHER_SCENES = 1000


class Study:
    """The corpora of a table, with the models, score tables and selections made of them."""

    def __init__(self, out: Path, table: Table) -> None:
        self._out, self._table = out, table

    def shards(self, noise: Mapping[str, float], seed: int) -> Path:
        """Rendered shards."""
        name = f"shards-{self._table.pairs}-{_file_name(noise)}-{seed}"
        options = {"pairs": self._table.pairs, "noise": noise, "seed": seed, "duplicates": 0.01}
        return rendered(self._out / name, **options)

    def start(self, noise: Mapping[str, float], seed: int) -> str:
        """The model that all arms go on from."""
        if self._table.start == "bundled":
            return "demo-noisy"
        learnt = (noise, seed) if self._table.start == "noisy" else ({}, _OTHER_SCENES + seed)
        shards, samples = self.shards(*learnt), self._table.start_samples

        def make(folder: Path) -> None:
            train_demo.write_model(learn(shards, samples, seed), folder, MODEL_CONFIG)

        folder = once(self._out / f"start-{samples}-{shards.name.removeprefix('shards-')}", make)
        return f"local-dir:{folder}"

    def rows(self, noise: Mapping[str, float], seed: int, arms: re.Pattern[str]) -> Iterator[Row]:
        """A row for the start and for each arm that matches, on one corpus."""
        held_out, facts = HeldOut(self._table.held_out), {"noise": dict(noise), "corpus": seed}
        start = self.start(noise, seed)
        yield {"arm": LEFT_ALONE, **facts, **held_out.measure(start)}
        forget = {"forget_percent": 100 * sum(noise.values())}
        for arm in self._table.arms:
            if arms.search(arm.name):
                takes = {} if arm.method not in ("ncu", "gradient_ascent") else forget
                told = replace(arm, ncu={**takes, **arm.ncu})
                model, kept = self.trained(told, noise, seed, start)
                yield {"arm": arm.name, **facts, **kept, **held_out.measure(model)}

    def trained(
        self, arm: Arm, noise: Mapping[str, float], seed: int, start: str
    ) -> tuple[str, dict[str, Any]]:
        """The model after an arm's steps, and what its selection keeps."""
        shards = self.shards({} if arm.corpus == "clean" else noise, seed)
        folder = self._out / f"{self._table.start}-{shards.name}-{self._table.training.steps}"
        selection, kept = None, {}
        if arm.policy is not None:
            table = folder / f"{arm.judge}.parquet"
            judge = start if arm.judge == "itself" else "demo"
            Score(shards=[str(shards)], out=str(table), model=judge).run()
            path = folder / "selections" / f"{arm.file_name}.parquet"
            selection, kept = selected(arm.policy, str(table), path)
        model = self._table.training.train(
            arm, start, shards, folder / arm.file_name, seed, selection=selection
        )
        return model, kept


def learn(shards: Path, samples: int, seed: int) -> CLIP:
    """Train a CLIP on a corpus as it is, from random weights."""
    torch.manual_seed(seed)
    model = CLIP(**MODEL_CONFIG)
    decode = ImageDecoder(train_demo.PREPROCESSING)
    pairs = list(samples_of(shards))
    tokens = open_clip.tokenizer.SimpleTokenizer()([pair.caption for pair in pairs])
    tokens = tokens[:, None, : int(token_lengths(tokens).max())]
    data = train_demo.TrainingSet(
        images=torch.stack([decode(pair.image).pixels for pair in pairs]),
        tokens=tokens,
        facts=torch.zeros(len(tokens), len(train_demo.FACTS)),
    )
    train_demo.train(model, data, samples=samples, seed=seed, **_START)
    return model


def write_bundled(study: Study, noise: Mapping[str, float], table: Table, out: Path) -> None:
    """Write the model to repair of corpus 0 as the bundled `demo-noisy`, with a card."""
    estimator = Estimator.load(study.start(noise, 0), None, precision="fp32")
    captions = [sample.caption for sample in samples_of(study.shards(noise, 0))]
    facts = {
        "scenes": f"{table.pairs:,} of `ncclean synth`, one caption each",
        "noise": noise_name(noise),
        "samples seen": f"{table.start_samples:,}: enough to learn the noise by heart",
        "objective": "CLIP loss, batch 128, Muon and AdamW, bf16 autocast",
        "made by": "`python tests/benchmarks repair.study --bundle`",
    }
    model = train_demo.without_unused(estimator.model, estimator.tokenize(captions))
    train_demo.write_bundled(model, out, facts, MODEL_CONFIG)


def repair(
    out: Path, table: str = "repair", corpora: int = 3, corpus: int | None = None,
    noise: tuple[str, ...] = (), arms: str = "", steps: int | None = None,
    pairs: int | None = None, start_samples: int | None = None, bundle: Path | None = None,
) -> Iterator[Row]:  # fmt: skip
    """A row for each arm, noise and corpus; the sizes are the table's unless told otherwise."""
    chosen = TABLES[table]
    sizes = {"pairs": pairs, "start_samples": start_samples}
    chosen = replace(chosen, **{name: size for name, size in sizes.items() if size is not None})
    if steps is not None:
        chosen = replace(chosen, training=replace(chosen.training, steps=steps))
    study = Study(out, chosen)
    noises = [{} if one == "none" else parse_rates((), (), [one]) for one in noise]
    if bundle is not None:
        write_bundled(study, chosen.noises[0], chosen, bundle)
        return {}
    first = chosen.first_seed
    seeds = range(first, first + corpora) if corpus is None else [corpus]
    for seed in seeds:
        for spoilt in noises or chosen.noises:
            yield from study.rows(spoilt, seed, re.compile(arms))
    return {"seeds": list(seeds)}


def _file_name(noise: Mapping[str, float]) -> str:
    return "-".join(f"{kind}{share:g}" for kind, share in noise.items()) or "clean"


if __name__ == "__main__":
    benchmark(repair)
