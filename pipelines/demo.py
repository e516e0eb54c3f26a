"""`ncclean demo`: run the bundled recipe `demo`, and show its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ncclean.base.options import Option, Seed

from .command import Command, Result
from .display import Shown
from .progress import SILENT, Progress
from .query import Query
from .run import result_of

if TYPE_CHECKING:
    from .recipe.run import RunSummary

QUERIES = (
    "SELECT status, count(*) AS pairs FROM scores GROUP BY status ORDER BY pairs DESC, status",
    "SELECT round(similarity, 3) AS similarity, round(noise_probability, 3) AS noise_probability, "
    "text FROM scores WHERE status = 'ok' ORDER BY noise_probability DESC, similarity LIMIT 5",
    "SELECT count(*) AS kept, round(sum(noise_probability)) AS expected_mismatched "
    "FROM scores WHERE noise_probability < 0.5",
)
_LARGEST_BATCH = 256
_LEAST_STEPS = 8  # of an epoch: a small demo trains in small batches


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Render a noisy corpus, find the noise, and repair a model that was trained on such noise.

    Runs the bundled recipe demo, without a network. Prints what every score and rule found of each
    kind of noise, and how good the model is when left alone, trained as before or repaired, next to
    an oracle that knows the truth.

    Example: `ncclean demo --out demo_run`
    """

    name = "demo"
    summary = "See all of it work on a rendered corpus."
    resume_hint = "run the same command again to go on"
    is_stage = False

    out: Annotated[str, Option("Folder of the run.", metavar="PATH", local=True)] = "demo_run"
    pairs: Annotated[int, Option("Pairs to render.", low=100)] = 16_000
    seed: Seed = 0

    def run(self, progress: Progress = SILENT) -> Result[RunSummary]:
        """Run or resume the bundled recipe `demo`."""
        from .recipe.bundled import find_recipe
        from .recipe.load import load_recipe
        from .recipe.run import run

        batch = max(2, min(_LARGEST_BATCH, self.pairs // _LEAST_STEPS))
        changes = [
            f"pairs={self.pairs}",
            f"seed={self.seed}",
            f"batch_size={batch}",
            f"steps={self.pairs // batch}",  # one pass
        ]
        summary = run(load_recipe(find_recipe("demo"), Path(self.out), changes), progress)
        result = result_of(self, summary)
        values = {**_noise(summary), "run": summary.to_json()}
        return replace(result, values=values, shown=self._shown(result))

    def _shown(self, result: Result[RunSummary]) -> Iterator[Shown]:
        yield from result.shown
        scores = f"{self.out.rstrip('/')}/scores.parquet"
        for sql in QUERIES:
            yield f'\n$ ncclean query "{sql}" {scores}'
            yield from Query(sql=sql, scores=[scores]).run().shown


def _noise(summary: RunSummary) -> dict[str, Any]:
    """Return the summary of scoring, and how much of the noise was found.

    `auroc[score][kind]` and `caught[rule][kind]`; `false_alarms[rule]` is the share of clean pairs
    that the rule flags.
    """
    evaluation = summary.records["noise"].result
    noise = {
        "auroc": {
            score["column"]: {one["kind"]: one["report"]["auroc"] for one in score["kinds"]}
            for score in evaluation["scores"]
        },
        "caught": {rule["rule"]: rule["noise_caught"] for rule in evaluation["rules"]},
        "false_alarms": {rule["rule"]: 1 - rule["clean_kept"] for rule in evaluation["rules"]},
        "counts": evaluation["noisy"],
    }
    return {"summary": summary.records["score"].result, "noise": noise}
