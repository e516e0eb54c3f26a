"""Can DisNCL's losses take apart the features of a CLIP model? On rendered pairs with known facts.

    python tests/benchmarks disentangle.clip [--arms NAME ...] [--out RECORD.json] ...

As `disentangle.py`, whose arguments it takes, with the model `demo`'s features of rendered images
and captions in place of mixtures: 40 % of the captions are permuted, heads train on the frozen
towers, and 2,000 new pairs are measured as `disentangle.run` measures them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from ncclean_pipelines.synth import Synth

from disentangle.facts import scene_facts
from disentangle.objectives import (
    HELD_OUT,
    NOISE,
    Known,
    facts_of_run,
    parser_of,
    row_of,
    run_arms,
    table,
    trained,
)
from disentangle.report import disentanglement_report, head_parts
from disentangle.run import encoded_pairs
from ncclean.data.options import CorpusOptions
from ncclean.data.shards import resolve_shards
from ncclean.models.estimator import Estimator

Encoded = tuple[torch.Tensor, torch.Tensor, list[dict[str, str] | None]]


def main() -> None:
    arguments = parser_of(__doc__ or "").parse_args()
    record = facts_of_run(arguments)
    with tempfile.TemporaryDirectory() as folder:
        arguments.folder = Path(folder)
        pairs = {"training": arguments.pairs, "held_out": HELD_OUT}
        for seed, (name, count) in enumerate(pairs.items()):
            torch.save(encoded(count, seed), arguments.folder / f"{name}.pt")
        run_arms(record, measured_row, arguments)
    print("\n".join(table(record)))


def encoded(pairs: int, seed: int) -> Encoded:
    """(N, d) features of matched rendered pairs, and their facts."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = CorpusOptions(pairs=pairs)
        Synth(out=folder, corpus=corpus, noise=0.0, held_out=0, seed=seed).run()
        shards = resolve_shards([folder])
        image, text, metadata = encoded_pairs(Estimator.load("demo", None), shards, pairs)
    return image, text, [scene_facts(record) for record in metadata]


def measured_row(arm: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train an arm on pairs mismatched by the seed; measure it."""
    start = time.perf_counter()
    image, text, _ = torch.load(arguments.folder / "training.pt")
    order = torch.randperm(len(image), generator=torch.Generator().manual_seed(seed))
    image, text = image[order], text[order]
    is_noisy = torch.arange(len(image)) < int(NOISE * len(image))
    text[is_noisy] = text[is_noisy].roll(1, dims=0)
    objective = trained(arm, Known(image, text, {}, is_noisy.to(torch.int8)), seed, arguments)
    image, text, facts = torch.load(arguments.folder / "held_out.pt")
    heads = objective._heads
    assert heads is not None
    report = disentanglement_report(head_parts(heads.eval(), image, text), facts)
    values = {
        **objective.statistics(),
        **{f"recall/{space}": value for space, value in report.retrieval.items()},
        "recall/exclusive, fitted": report.fitted_retrieval,
        **{f"information/{name.split('_')[0]}": n for name, n in report.information.items()},
        **{f"probe/{p.fact}/{part}": n for p in report.facts for part, n in p.read_from.items()},
        **{
            f"variance/{side}/{part}": share
            for side, shares in report.composition.items()
            for part, share in shares.items()
        },
    }
    return row_of(arm, seed, time.perf_counter() - start, values)


if __name__ == "__main__":
    main()
