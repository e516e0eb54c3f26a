"""What is found of permuted captions with real pretrained CLIPs on real photographs.

    python tests/benchmarks noise.real_clip --data FOLDER [--draws 20] [--rates-only]
        [--record docs/records/...]

FOLDER holds one `.npz` a corpus, with `image` and `text`: (n, d) embeddings of matched pairs, in
the same order. Nothing of them is in this repository. In each draw the captions of a share of the
pairs are permuted, and the corpus is scored and judged as a user would do it: `ncclean score` from
the embeddings, `ncclean evaluate noise` on the table. `weak_estimators.py` makes further files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score
from records import make_record, write_record
from upath import UPath

from ncclean.base.config import CalibratedOn
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.scoring.stats import unpack_histogram
from ncclean.storage.noisy_copy import write_noisy_copy
from ncclean.storage.summary import ScoreSummary

SHARES = (0.0, 0.05, 0.2, 0.4)


def measure(
    file: Path, share: float, draws: int, scratch: Path, rates_only: bool
) -> dict[str, Any]:
    """The noise rate, the scores and the rules on one corpus, over draws of the noise."""
    folder = scratch / file.stem
    if not folder.exists():
        _as_clip_retrieval(file, folder)
    shards = resolve_embeddings([str(folder)])
    estimates, evaluations, separations, controls = [], [], [], []
    halves: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    taken: list[str] = []
    for draw in range(draws):
        with tempfile.TemporaryDirectory(dir=scratch) as aside:
            source, moved = str(folder), 0.0
            if share:
                made = write_noisy_copy(
                    shards, None, UPath(aside), share=share, pairs=10**9, seed=draw
                )
                source, moved = made.noisy, made.moved
            table = str(Path(aside) / "scores.parquet")
            found: ScoreSummary = Score(shards=[source], out=table, scale=100.0).run().summary
            estimates.append((moved, *found.noise_rate))
            separations.append(found.separation or 0.0)
            controls.append(_storey(table))
            taken.append(found.calibrated_on)
            if share and not rates_only:
                evaluations.append(EvaluateNoise(scores=[table]).run().summary)
            pairs = found.ok
            for score, found_at_half in at_half(table).items():
                halves[score].append(found_at_half)
        if not share:  # every draw is the same
            break
    return {
        "corpus": file.stem,
        "pairs": pairs,
        "share": share,
        "true": statistics.mean(moved for moved, *_ in estimates),
        "estimated": _summed([rate for _, rate, *_ in estimates]),
        "covered": sum(low <= moved <= high for moved, _, low, high in estimates),
        "draws": len(estimates),
        "width": statistics.mean(high - low for *_, low, high in estimates),
        "storey": _summed(controls),
        "separation": statistics.mean(separations),
        "at_half": {
            score: {name: _summed([each[name] for each in of_score]) for name in of_score[0]}
            for score, of_score in halves.items()
        },
        "auto_takes": {score: taken.count(score) for score in get_args(CalibratedOn)},
        "scores": _of_scores(evaluations),
        "rules": _of_rules(evaluations),
    }


def _storey(table: str) -> float:
    """The control: twice the share of pairs below the median of the known mismatches."""
    metadata = pq.read_schema(table).metadata
    matched, mismatched = (
        unpack_histogram(json.loads(metadata[name])).counts
        for name in (b"matched_histogram", b"mismatched_histogram")
    )
    return float(2 * np.interp(0.5, _shares(mismatched), _shares(matched)))


def _shares(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])


def at_half(table: str, shift: str | float = "auto") -> dict[str, Mapping[str, float]]:
    """`_at_half` of a table as it is, which was calibrated by `auto`, and on either score."""
    found = {"auto": _at_half(table)}
    for score in get_args(CalibratedOn):
        Score(shards=[], out=table, calibrate_on=score, finalize_only=True, shift=shift).run()
        found[score] = _at_half(table)
    return found


def _at_half(table: str) -> Mapping[str, float]:
    """The share of pairs on the wrong side of a noise probability of .5.

    And of the pairs below it, the share that is expected to be mismatched, and that is.
    """
    rows = pq.read_table(table, columns=["noise_probability", "is_noisy"])
    probability = rows.column("noise_probability").to_numpy()
    mismatched = rows.column("is_noisy").fill_null(False).to_numpy(zero_copy_only=False)
    kept = probability < 0.5
    return {
        "error": float((kept == mismatched).mean()),
        "expected": float(probability[kept].mean()),
        "mismatched": float(mismatched[kept].mean()),
    }


def _of_scores(evaluations: list[Any]) -> dict[str, Any]:
    found: dict[str, dict[str, list[float]]] = {}
    for evaluation in evaluations:
        for score in evaluation.scores:
            report = score.kinds[0].report
            figures = found.setdefault(score.column, {"auroc": [], "average_precision": []})
            figures["auroc"].append(report.auroc)
            figures["average_precision"].append(report.average_precision)
    return {
        column: {name: _summed(values) for name, values in figures.items()}
        for column, figures in found.items()
    }


def _of_rules(evaluations: list[Any]) -> dict[str, Any]:
    found: dict[str, dict[str, list[float]]] = {}
    for evaluation in evaluations:
        for rule in evaluation.rules:
            figures = found.setdefault(rule.rule, {"clean_kept": [], "noise_kept": []})
            figures["clean_kept"].append(rule.clean_kept)
            figures["noise_kept"].append(1 - rule.noise_caught["all"])
    return {
        rule: {name: _summed(values) for name, values in figures.items()}
        for rule, figures in found.items()
    }


def _summed(values: list[float]) -> Mapping[str, float]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": round(statistics.mean(values), 6), "deviation": round(spread, 6)}


def _as_clip_retrieval(file: Path, folder: Path) -> None:
    arrays = np.load(file)
    for kind, name in (("img_emb", "image"), ("text_emb", "text")):
        (folder / kind).mkdir(parents=True)
        np.save(folder / kind / f"{kind}_0.npy", arrays[name])
    (folder / "metadata").mkdir()
    captions = [f"caption {row}" for row in range(len(arrays["image"]))]
    pq.write_table(pa.table({"caption": captions}), folder / "metadata" / "metadata_0.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of .npz files")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--rates-only", action="store_true", help="no scores and rules")
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="ncclean-real-clip-") as scratch:
        for file in sorted(arguments.data.glob("*.npz")):
            for share in SHARES:
                row = measure(file, share, arguments.draws, Path(scratch), arguments.rates_only)
                rows.append(row)
                print(
                    f"{row['corpus']}: {row['true']:.3f} estimated as "
                    f"{row['estimated']['mean']:.3f} ± {row['estimated']['deviation']:.3f}, "
                    f"{row['covered']} of {row['draws']} intervals cover it",
                    flush=True,
                )
    if arguments.record is not None:
        record = make_record(
            rows, settings={"shares": SHARES, "scale": 100.0}, seeds=range(arguments.draws)
        )
        write_record(arguments.record, record)


if __name__ == "__main__":
    main()
