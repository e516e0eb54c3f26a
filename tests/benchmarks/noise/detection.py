"""What policies keep and scores find of known noise: tables of docs/select and docs/neighbours.

    python tests/benchmarks noise.detection selection [--pairs 50_000] [--record FILE.json]
    python tests/benchmarks noise.detection neighbours [--pairs 20_000] [--record FILE.json]

A rendered corpus with 20 % permuted captions, 5 % with one wrong word and 2 % boilerplate, scored
by the bundled estimator. `selection` applies policies; `neighbours` compares the columns of
`ncclean neighbours` with those of the score table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from records import make_record, write_record

from ncclean.base.config import ScoreOptions
from ncclean.data.synthetic.corpus import CorpusOptions, write_corpus
from ncclean.selection.policy import Policy

NOISE = {"ncr": 0.2, "hard": 0.05, "junk": 0.02}
POLICIES = {
    "`--method noise-probability` (.5)": Policy(method="noise-probability"),
    "`... --threshold 0.2`": Policy(method="noise-probability", threshold=0.2),
    "`... --threshold 0.1`": Policy(method="noise-probability", threshold=0.1),
    "`--method disncl`": Policy(method="disncl"),
    "`--score clean_posterior --threshold 0.5`": Policy(score="clean_posterior", threshold=0.5),
    "`--method ncu` (10 % forgotten)": Policy(method="ncu"),
    "`--method osa` (shift `noise`)": Policy(method="osa"),
    "`--score similarity --keep-fraction 0.3`": Policy(score="similarity", keep_fraction=0.3),
}
_COLUMNS = ("noise_probability", "neg_clip_loss")
_NEIGHBOURS = ("better_captions", "better_images", "lemon_score")


def selection(folder: Path) -> dict[str, Any]:
    """Each policy: pairs kept, shares kept of each kind, mismatched ones as expected and in truth.

    What counts as mismatched are permuted captions and boilerplate: one wrong word does not make
    a pair look like a random one.
    """
    scores = str(folder / "scores.parquet")
    rows = []
    for name, policy in POLICIES.items():
        chosen = str(folder / "selection.parquet")
        summary = Select(scores=[scores], out=chosen, policy=policy).run().summary
        counts = duckdb.execute(
            "SELECT coalesce(noise_kind, 'clean'), count(c.uid), count(*) "
            "FROM read_parquet(?) s LEFT JOIN read_parquet(?) c USING (uid) GROUP BY 1 ORDER BY 1",
            [scores, chosen],
        ).fetchall()
        kept = {kind: here for kind, here, _ in counts}
        rows.append({
            "policy": name,
            "kept": summary.kept,
            "kept_by_kind": kept,
            "pairs_by_kind": {kind: pairs for kind, _, pairs in counts},
            "expected_mismatched": summary.expected_mismatched_kept,
            "mismatched": kept["ncr"] + kept["junk"],
        })  # fmt: skip
    return {"rows": rows}


def neighbours(folder: Path) -> dict[str, Any]:
    """AUROC and average precision of each column by kind of noise, and what rules flag."""
    table = folder / "neighbours.parquet"
    code = "from ncclean_cli.app import main; main()"
    # A process of its own: torch and FAISS bring an OpenMP runtime each.
    subprocess.run(
        [sys.executable, "-c", code, "neighbours", str(folder / "embeddings"), "--out", str(table)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    evaluation = EvaluateNoise(
        scores=[str(folder / "scores.parquet")],
        join=[str(table)],
        column=_NEIGHBOURS,
        rule=("NOT mutual_nearest",),
    ).run().summary  # fmt: skip
    rows = [
        {
            "column": score.column,
            "kind": kind.kind,
            "noisy": kind.noisy,
            "auroc": kind.report.auroc,
            "average_precision": kind.report.average_precision,
        }
        for score in evaluation.scores
        if score.column in (*_COLUMNS, *_NEIGHBOURS)
        for kind in score.kinds
    ]
    rules = [
        {"rule": rule.rule, "flagged_clean": 1 - rule.clean_kept, "flagged": rule.noise_caught}
        for rule in evaluation.rules
    ]
    return {"rows": rows, "clean": evaluation.clean, "noisy": evaluation.noisy, "rules": rules}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", choices=("selection", "neighbours"))
    parser.add_argument("--pairs", type=int, help="default: 50,000, or 20,000 for neighbours")
    parser.add_argument("--seed", type=int, help="default: 3, or 1 for neighbours")
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    measure, pairs, seed = {
        "selection": (selection, 50_000, 3),
        "neighbours": (neighbours, 20_000, 1),
    }[arguments.table]
    pairs = arguments.pairs or pairs
    seed = seed if arguments.seed is None else arguments.seed
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ncclean-detection-") as name:
        folder = Path(name)
        write_corpus(folder / "shards", CorpusOptions(pairs=pairs, noise=NOISE, seed=seed), 1)
        embeddings = str(folder / "embeddings") if measure is neighbours else None
        Score(
            shards=[str(folder / "shards")],
            out=str(folder / "scores.parquet"),
            model="demo",
            options=ScoreOptions(embeddings=embeddings),
        ).run()
        measured = measure(folder)
    rows = measured.pop("rows")
    for row in rows:
        print(row)
    seconds = round(time.perf_counter() - start, 1)
    if arguments.record is not None:
        settings = {"pairs": pairs, "noise": NOISE, "model": "demo"}
        record = make_record(rows, settings=settings, seeds=[seed], seconds=seconds, **measured)
        write_record(arguments.record, record)


if __name__ == "__main__":
    main()
