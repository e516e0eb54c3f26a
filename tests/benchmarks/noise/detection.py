"""What policies keep and scores find of known noise: tables of docs/select and docs/neighbours.

    python tests/benchmarks noise.detection [--pairs 50_000] [--record FILE.json]
    python tests/benchmarks noise.detection --table neighbours [--pairs 20_000]

A rendered corpus with 20 % permuted captions, 5 % with one wrong word and 2 % boilerplate, scored
by the bundled estimator. `selection` applies policies; `neighbours` compares the columns of
`ncclean neighbours` with those of the score table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
from corpora import rendered
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from process import run_ncclean
from records import Row, benchmark

from ncclean.base.config import ScoreOptions
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


def selection(folder: Path) -> Iterator[Row]:
    """Each policy: pairs kept, shares kept of each kind, mismatched ones as expected and in truth.

    What counts as mismatched are permuted captions and boilerplate: one wrong word does not make
    a pair look like a random one.
    """
    scores = str(folder / "scores.parquet")
    for name, policy in POLICIES.items():
        chosen = str(folder / "selection.parquet")
        summary = Select(scores=[scores], out=chosen, policy=policy).run().summary
        counts = duckdb.execute(
            "SELECT coalesce(noise_kind, 'clean'), count(c.uid), count(*) "
            "FROM read_parquet(?) s LEFT JOIN read_parquet(?) c USING (uid) GROUP BY 1 ORDER BY 1",
            [scores, chosen],
        ).fetchall()
        kept = {kind: here for kind, here, _ in counts}
        yield {
            "policy": name,
            "kept": summary.kept,
            "kept_by_kind": kept,
            "pairs_by_kind": {kind: pairs for kind, _, pairs in counts},
            "expected_mismatched": summary.expected_mismatched_kept,
            "mismatched": kept["ncr"] + kept["junk"],
        }


def neighbours(folder: Path) -> Iterator[Row]:
    """AUROC and average precision of each column by kind of noise."""
    table = str(folder / "neighbours.parquet")
    # A process of its own: torch and FAISS bring an OpenMP runtime each.
    run_ncclean("neighbours", folder / "embeddings", "--out", table)
    evaluation = EvaluateNoise(
        scores=[str(folder / "scores.parquet")], join=[table], column=_NEIGHBOURS
    ).run().summary  # fmt: skip
    for score in evaluation.scores:
        for kind in score.kinds if score.column in (*_COLUMNS, *_NEIGHBOURS) else ():
            yield {
                "column": score.column,
                "kind": kind.kind,
                "noisy": kind.noisy,
                "auroc": kind.report.auroc,
                "average_precision": kind.report.average_precision,
            }
    return {"clean": evaluation.clean, "noisy": evaluation.noisy}


def detect(
    table: str = "selection", pairs: int | None = None, seed: int | None = None
) -> Iterator[Row]:
    """The rows of one table."""
    measure, usual_pairs, usual_seed = {
        "selection": (selection, 50_000, 3),
        "neighbours": (neighbours, 20_000, 1),
    }[table]
    pairs, seed = pairs or usual_pairs, usual_seed if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="ncclean-detection-") as name:
        folder = Path(name)
        options = {"pairs": pairs, "noise": NOISE, "seed": seed, "duplicates": 0.01}
        shards = rendered(folder / "shards", **options)
        options = ScoreOptions(embeddings=str(folder / "embeddings"))
        Score(
            shards=[str(shards)], out=str(folder / "scores.parquet"), model="demo", options=options
        ).run()
        facts = yield from measure(folder)
    return {"settings": {"pairs": pairs, "noise": NOISE}, "seeds": [seed], **(facts or {})}


if __name__ == "__main__":
    benchmark(detect)
