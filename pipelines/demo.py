"""The demo: the bundled recipe `demo`, with what is shown of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .recipe.bundled import find_recipe
from .recipe.load import load_recipe
from .recipe.run import RunReports, RunSummary, run

SCORES_FILE = "scores.parquet"
QUERIES = (
    "SELECT status, count(*) AS pairs FROM scores GROUP BY status ORDER BY pairs DESC",
    "SELECT round(similarity, 3) AS similarity, round(noise_probability, 3) AS noise_probability, "
    "text FROM scores WHERE status = 'ok' ORDER BY noise_probability DESC, similarity LIMIT 5",
    "SELECT count(*) AS kept, round(sum(noise_probability)) AS expected_mismatched "
    "FROM scores WHERE noise_probability < 0.5",
)
_LARGEST_BATCH = 256
_LEAST_STEPS = 8  # of an epoch: a small demo trains in small batches


def run_demo(out: Path, pairs: int, seed: int, reports: RunReports | None = None) -> RunSummary:
    """Run the recipe on `pairs` pairs in the folder `out`, or what is left of it."""
    batch = max(2, min(_LARGEST_BATCH, pairs // _LEAST_STEPS))
    changes = [f"pairs={pairs}", f"seed={seed}", f"batch_size={batch}"]
    return run(load_recipe(find_recipe("demo"), out, changes), reports)


def demo_json(summary: RunSummary) -> dict[str, Any]:
    """What `ncclean demo --json` prints: the summary of scoring, what was found of the noise, and
    the whole run.

    `auroc[score][kind]` and `caught[rule][kind]`; `false_alarms[rule]` is the share of clean pairs
    that the rule flags.
    """
    found = summary.records["noise"].result
    noise = {
        "auroc": {
            score["column"]: {one["kind"]: one["report"]["auroc"] for one in score["kinds"]}
            for score in found["scores"]
        },
        "caught": {rule["rule"]: rule["noise_caught"] for rule in found["rules"]},
        "false_alarms": {rule["rule"]: 1 - rule["clean_kept"] for rule in found["rules"]},
        "counts": found["noisy"],
    }
    return {"summary": summary.records["score"].result, "noise": noise, "run": summary.to_json()}
