"""How far a disncl model keeps apart what image and caption share and what each has alone.

    python tests/benchmarks disentangle.run runs/disncl --shards heldout/ --plot halves.pdf

Mutual information between the halves (MINE), retrieval in each space, and for pairs that `synth`
rendered, how well each fact can be read from each half (0 is chance, 1 is always) and how much of
each half's variance it explains. The pairs are matched, and the model was not trained on them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from disentangle.facts import scene_facts
from disentangle.figure import projected, save_figure
from disentangle.report import DisentanglementReport, disentanglement_report, head_parts
from ncclean.data.decode import ImageDecoder
from ncclean.data.decoding import decoded_shard
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.errors import InputError
from ncclean.models.estimator import Estimator
from ncclean.models.heads import read_heads
from ncclean.training.batches import encode_features

_BATCH = 128
_FEWEST = 40


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run folder of `finetune --method disncl`")
    parser.add_argument("--shards", nargs="+", required=True, help="matched, unseen pairs")
    parser.add_argument("--pairs", type=int, default=2000, help="maximum number of pairs")
    parser.add_argument("--plot", help="draw Fig. 4 to this .png, .svg or .pdf")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the report to this file")
    options = vars(parser.parse_args())
    folder, sources, file = options.pop("run"), options.pop("shards"), options.pop("json")
    report = measure_heads(folder, resolve_shards(sources), **options)
    if file is not None:
        file.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n")
    print("\n".join(_summary(report)))


def measure_heads(
    folder: Path,
    shards: Sequence[ShardRef],
    *,
    pairs: int = 2000,
    plot: str | None = None,
    precision: str = "auto",
    device: str = "auto",
    seed: int = 0,
) -> DisentanglementReport:
    """Encode the pairs, take them apart, measure, and draw if asked to.

    Raises `ModelError` if the run has no heads, `InputError` if pairs are too few.
    """
    heads = read_heads(folder)
    estimator = Estimator.load(f"local-dir:{folder}", None, precision=precision, device=device)
    image, text, metadata = encoded_pairs(estimator, shards, pairs)
    if len(image) < _FEWEST:
        raise InputError(f"only {len(image)} pairs could be read: at least {_FEWEST} are needed")
    parts = head_parts(heads, image, text)
    report = disentanglement_report(parts, [scene_facts(record) for record in metadata], seed)
    if plot is not None:
        save_figure(report, projected(parts, seed=seed), plot)
    return report


def encoded_pairs(
    estimator: Estimator, shards: Sequence[ShardRef], pairs: int
) -> tuple[torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
    """(N, d) features of the first pairs that can be read, and their json."""
    decoder = ImageDecoder(estimator.preprocessing)
    held: list[tuple[torch.Tensor, str]] = []
    features: list[tuple[torch.Tensor, ...]] = []
    metadata: list[dict[str, Any]] = []

    def encode() -> None:
        pixels = torch.stack([crop for crop, _ in held])
        batch = encode_features(estimator, pixels, [caption for _, caption in held])
        features.append(tuple(half.cpu() for half in batch))
        held.clear()

    for shard in shards:
        for decoded in decoded_shard(shard, decoder, 2):
            if decoded.pixels is None or decoded.sample.caption is None:
                continue
            if len(metadata) < pairs:
                held.append((decoded.pixels, decoded.sample.caption))
                metadata.append(decoded.sample.metadata)
            if len(held) == _BATCH:
                encode()
    if held:
        encode()
    if not features:
        return torch.empty(0, 1), torch.empty(0, 1), []
    return torch.cat([f[0] for f in features]), torch.cat([f[1] for f in features]), metadata


def _summary(report: DisentanglementReport) -> Iterator[str]:
    yield f"{report.pairs:,} pairs"
    for name, value in report.information.items():
        yield f"mutual information of {name}: {value:.3f} nats"
    recalls = ", ".join(f"{space} {value:.1%}" for space, value in report.retrieval.items())
    yield f"recall at 1, mean of both directions: {recalls}; chance {report.chance:.1%}"
    yield (
        "recall at 1, exclusive, after a linear map from image to caption: "
        f"{report.fitted_retrieval:.1%}; chance {2 * report.chance:.1%}"
    )
    if not report.facts:
        yield "the shards do not say what the pairs show: no facts to probe"
        return
    yield "read by a linear probe: 0 is chance, 1 is always right"
    for fact in report.facts:
        yield f"  {fact.fact} ({fact.shown_by}): {_cells(fact.read_from, '.2f')}"
    yield "share of the variance that facts explain"
    for side, values in report.composition.items():
        yield f"  {side}: {_cells(values, '.0%')}"


def _cells(values: Mapping[str, float], form: str) -> str:
    return ", ".join(
        f"{half} {'-' if math.isnan(value) else format(value, form)}"
        for half, value in values.items()
    )


if __name__ == "__main__":
    main()
