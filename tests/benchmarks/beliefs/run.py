"""What each method believes about the training pairs of a run, against the truth and each other.

    python tests/benchmarks beliefs.run runs/bayes --scores scores.parquet

Writes `RUN/beliefs.parquet`: for each pair NCU's confidence and split, DisNCL's filter and the
Bayesian weight of the trained model, in batches like those of the training, and the weight and
split of its selection. Prints the AUROC with which each tells clean pairs from noisy ones, and
their rank correlations.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from ncclean_pipelines.command import build
from ncclean_pipelines.finetune import Finetune

from beliefs.block import training_beliefs
from beliefs.compared import WeightReport, compare_beliefs
from ncclean.data.options import LoaderOptions
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.shards import ShardRef, resolve_shards
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.models.request import ModelRequest
from ncclean.storage.catalog import connect
from ncclean.training.finetune import PARAMS, Finetuning

BELIEFS = "beliefs.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run folder of `finetune`")
    parser.add_argument("--scores", nargs="+", default=(), help="score table of the pairs")
    parser.add_argument("--shards", nargs="+", help="the training shards, if they have moved")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    params = yaml.safe_load((arguments.run / PARAMS).read_text())
    params.pop("versions", None)
    trained = build(Finetune, {**params, "out": str(arguments.run)})
    model = ModelRequest(
        model=f"local-dir:{arguments.run}",
        pretrained=None,
        precision=arguments.precision,
        device=arguments.device,
        space="auto",
    )
    shards = resolve_shards(arguments.shards or trained.shards)
    report = write_beliefs(
        trained.finetuning(), model, arguments.run, shards, arguments.scores, arguments.seed
    )
    print("\n".join(_summary(report)))


def write_beliefs(
    trained: Finetuning,
    model: ModelRequest,
    folder: Path,
    shards: Sequence[ShardRef],
    scores: Sequence[str] = (),
    seed: int = 0,
) -> WeightReport:
    """Compute the beliefs of the trained `model`, write them into its folder and compare them.

    `scores` are the tables of the estimator, whose beliefs are compared too.
    """
    uids, is_noisy, beliefs = _trained(trained, model, shards, seed)
    if scores:
        beliefs |= _scored(uids, scores)
    columns = {
        name: pa.array(values.astype(np.float32), mask=np.isnan(values))
        for name, values in beliefs.items()
    }
    truth = pa.array(is_noisy == 1, mask=is_noisy < 0)
    table = pa.table({"uid": pa.array(uids), "is_noisy": truth, **columns})
    pq.write_table(table, folder / BELIEFS, compression="zstd")
    return compare_beliefs(beliefs, is_noisy)


def _trained(
    trained: Finetuning, model: ModelRequest, shards: Sequence[ShardRef], seed: int
) -> tuple[list[str], np.ndarray, dict[str, np.ndarray]]:
    """Uids, truth and beliefs of the training pairs."""
    estimator = model.load()
    selection = trained.selection
    loader = WeightedLoader(
        shards,
        SelectionReader(selection) if selection is not None else None,
        estimator.preprocessing,
        LoaderOptions(batch_size=trained.batch_size, seed=seed, augment=False, drop_last=False),
    )
    # The posterior is that of fresh u's: the memory of a run belongs to its last steps.
    bayes = dataclasses.replace(trained.objective.bayes, moving_average=None)
    percent = trained.objective.ncu.forget_percent
    uids, truth, beliefs = training_beliefs(estimator, loader, percent, bayes, seed)
    if selection is None:
        del beliefs["selection_weight"], beliefs["selection_retain"]
    return uids, truth, beliefs


def _scored(uids: list[str], scores: Sequence[str]) -> dict[str, np.ndarray]:
    """The estimator's beliefs from the score table, NaN for pairs that are not in it."""
    with connect(scores) as connection:
        rows = connection.execute(
            "SELECT uid, osa_weight, 1 - noise_probability, ncu_confidence, disncl_clean::FLOAT "
            "FROM scores WHERE status = 'ok'"
        ).fetchall()
    by_uid = {uid: values for uid, *values in rows}
    table = np.array([by_uid.get(uid, [None] * 4) for uid in uids], dtype=float)
    names = ("osa_weight", "clean_probability", "ncu_confidence", "disncl_clean")
    return {f"scores.{name}": table[:, place] for place, name in enumerate(names)}


def _summary(report: WeightReport) -> Iterator[str]:
    yield f"{report.pairs:,} pairs, {report.noisy:,} noisy"
    for belief in report.beliefs:
        yield (
            f"{belief.name}: AUROC {belief.auroc:.3f}, mean {belief.clean_mean:.3f} of clean "
            f"pairs, {belief.noisy_mean:.3f} of noisy ones"
        )
    yield "rank correlation"
    for name, others in report.correlation.items():
        yield f"  {name}: " + ", ".join(f"{other} {r:.2f}" for other, r in others.items())


if __name__ == "__main__":
    main()
