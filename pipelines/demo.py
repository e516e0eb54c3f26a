"""The demo: a rendered noisy corpus, scored, and what each score found of the noise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ncclean.config import ScoreOptions
from ncclean.data.synthetic.corpus import CorpusOptions, write_corpus
from ncclean.evaluation.noise_evaluation import ALL
from ncclean.storage.summary import ScoreSummary

from .evaluate_noise import NoiseEvaluationRequest, evaluate_noise
from .progress import Progress
from .score import ScoreRequest, score

NOISE = {"ncr": 0.2, "hard": 0.05, "junk": 0.02}
KIND_NAMES = {
    "ncr": "permuted caption",
    "hard": "one wrong word",
    "junk": "boilerplate caption",
}
# What the demo shows of the evaluation; `ncclean evaluate noise` shows all of it.
SCORES = ("similarity", "osa_weight", "ncu_confidence", "neg_clip_loss", "noise_probability")
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
    return DemoResult(scores, summary, noise_table(scores))


def noise_table(scores: Path) -> NoiseTable:
    """Compare a score table with the truth in it."""
    found = evaluate_noise(NoiseEvaluationRequest(scores=[str(scores)])).evaluation
    auroc = {
        score.column: {one.kind: one.report.auroc for one in score.kinds if one.kind != ALL}
        for score in found.scores
        if score.column in SCORES
    }
    caught = {
        rule.rule: {kind: rule.noise_caught[kind] for kind in found.noisy} for rule in found.rules
    }
    alarms = {rule.rule: 1 - rule.clean_kept for rule in found.rules}
    return NoiseTable(auroc, caught, alarms, found.noisy)
