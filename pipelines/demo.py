"""The demo: a rendered noisy corpus, scored, and what each score found of the noise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ncclean.config import ScoreOptions
from ncclean.data.noise import plan_noise
from ncclean.data.synthetic.corpus import CorpusOptions, pair_uid, write_corpus
from ncclean.evaluation.noise_detection import detection_report
from ncclean.storage.catalog import connect
from ncclean.storage.summary import ScoreSummary

from .score import Progress, ScoreRequest, score

NOISE = {"ncr": 0.2, "hard": 0.05, "junk": 0.02}
KIND_NAMES = {
    "ncr": "permuted caption",
    "hard": "one wrong word",
    "junk": "boilerplate caption",
}
# Column and sign: the sign turns it into a noise score, higher is noisier.
SCORES = (
    ("similarity", -1),
    ("osa_weight", -1),
    ("ncu_confidence", -1),
    ("neg_clip_loss", -1),
    ("noise_probability", 1),
)
RULES = (
    ("osa_noisy", "osa_noisy"),
    ("ncu forget", "ncu_split = 'forget'"),
    ("not disncl_clean", "NOT disncl_clean"),
    ("noise_probability >= 0.5", "noise_probability >= 0.5"),
)
QUERIES = (
    "SELECT status, count(*) AS pairs FROM scores GROUP BY status ORDER BY pairs DESC",
    "SELECT round(similarity, 3) AS similarity, round(noise_probability, 3) AS noise_probability, "
    "text FROM scores WHERE status = 'ok' ORDER BY noise_probability DESC, similarity LIMIT 5",
    "SELECT count(*) AS kept, round(sum(noise_probability)) AS expected_mismatched "
    "FROM scores WHERE noise_probability < 0.5",
)


@dataclass(frozen=True)
class NoiseTable:
    """AUROC of each score and share caught by each rule, per kind of noise.

    `auroc[score][kind]` and `caught[rule][kind]`; `false_alarms[rule]` is the share of clean
    pairs that the rule flags.
    """

    auroc: dict[str, dict[str, float]]
    caught: dict[str, dict[str, float]]
    false_alarms: dict[str, float]
    counts: dict[str, int]


@dataclass(frozen=True)
class DemoResult:
    scores: Path
    summary: ScoreSummary
    noise: NoiseTable


def run_demo(out: Path, pairs: int, seed: int, progress: Progress | None = None) -> DemoResult:
    """Render `pairs` pairs into `out/shards` (unless they are there), score, compare with truth."""
    options = CorpusOptions(pairs=pairs, noise=NOISE, broken=0.005, seed=seed)
    shards = out / "shards"
    if not shards.exists():
        if progress is not None:
            progress.stage(f"rendering {pairs:,} pairs")
        # A folder of another name until it is whole, so that an interrupted demo starts over.
        aside = out / f"shards.{os.getpid()}.tmp"
        write_corpus(aside, options)
        aside.replace(shards)
    scores = out / "scores.parquet"
    request = ScoreRequest(
        shards=[str(shards)],
        out=str(scores),
        model="demo",
        options=ScoreOptions(seed=seed, decode_threads=os.cpu_count() or 1),
    )
    summary = score(request, progress)
    return DemoResult(scores, summary, noise_table(scores, options))


def noise_table(scores: Path, options: CorpusOptions) -> NoiseTable:
    """Compare a score table of a rendered corpus with the noise that was put in."""
    plan = plan_noise(options.pairs, options.noise, options.seed)
    kinds = {pair_uid(options.seed, index): kind for index, kind in enumerate(plan.kind)}
    flags = ", ".join(f"({rule}) AS rule_{number}" for number, (_, rule) in enumerate(RULES))
    columns = ", ".join(name for name, _ in SCORES)
    table = connect([str(scores)]).execute(
        f"SELECT uid, {columns}, {flags} FROM scores WHERE status = 'ok'"
    )
    rows = table.fetchnumpy()
    kind = np.array([kinds[uid] for uid in rows["uid"]])
    clean = kind == ""
    auroc: dict[str, dict[str, float]] = {name: {} for name, _ in SCORES}
    caught: dict[str, dict[str, float]] = {name: {} for name, _ in RULES}
    for noise in options.noise:
        chosen = clean | (kind == noise)
        for name, sign in SCORES:
            values = sign * np.asarray(rows[name], dtype=float)[chosen]
            auroc[name][noise] = detection_report(values, ~clean[chosen], 0.0).auroc
        for number, (name, _) in enumerate(RULES):
            caught[name][noise] = float(np.asarray(rows[f"rule_{number}"])[kind == noise].mean())
    alarms = {
        name: float(np.asarray(rows[f"rule_{number}"])[clean].mean())
        for number, (name, _) in enumerate(RULES)
    }
    counts = {name: int((kind == name).sum()) for name in options.noise}
    return NoiseTable(auroc, caught, alarms, counts)
