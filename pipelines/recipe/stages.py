"""The stages of a recipe: each calls the pipeline of its command, starting or going on.

A function takes the request, how to start, and whom to report to. What is resumed is the
pipeline's business; here it is only told whether to.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

from ncclean import stores
from ncclean.atomic import published
from ncclean.errors import ResumeError
from ncclean.evaluation.noise_evaluation import ALL, NoiseEvaluation
from ncclean.selection.export import clear_export

from ..adapt import AdaptRequest, adapt
from ..evaluate_noise import evaluate_noise
from ..export import ExportRequest, export
from ..finetune import FinetuneRequest, clear_training, finetune
from ..inject_noise import NoiseRequest, inject_noise
from ..neighbours import NeighboursRequest, neighbours
from ..report import ReportRequest, report
from ..score import ScoreRequest, score
from ..select import SelectRequest, select
from ..synth import SynthRequest, synth
from .outcome import Outcome, Start
from .reports import Reports, RowProgress, ShardProgress, WrittenShards, training_steps
from .requests import NoiseEvaluationStage


def run_synth(request: SynthRequest, start: Start, reports: Reports) -> Outcome:
    """Render a corpus. One that was broken off is rendered again."""
    reports.say(f"rendering {request.pairs:,} pairs")
    found = synth(dataclasses.replace(request, overwrite=start is not Start.NEW))
    figures = {"pairs": f"{found.pairs:,}", "shards": f"{found.shards:,}"}
    return Outcome(found.to_json(), figures, [request.out])


def run_inject_noise(request: NoiseRequest, start: Start, reports: Reports) -> Outcome:
    """Write shards with known noise."""
    progress = ShardProgress(reports)
    try:
        found = inject_noise(dataclasses.replace(request, overwrite=start.replaces), progress)
    except ResumeError as difference:
        if start is Start.NEW:  # not ours
            raise
        reports.say(f"starting again: {difference}")
        found = inject_noise(dataclasses.replace(request, overwrite=True), progress)
    noisy = sum(found.noisy.values()) + found.already_noisy
    figures = {"pairs": f"{found.pairs:,}", "noisy": f"{noisy:,}"}
    result = dataclasses.asdict(found)
    return Outcome(result, figures, [request.out], found.failed_shards)


def run_score(request: ScoreRequest, start: Start, reports: Reports) -> Outcome:
    """Score the shards.

    Changed options may be such that parts are still good (another shift, another version of
    ncclean), so these are kept if the run itself takes them.
    """
    progress = ShardProgress(reports)
    try:
        found = score(dataclasses.replace(request, overwrite=start is Start.AGAIN), progress)
    except ResumeError as difference:
        if start is Start.NEW:  # not ours
            raise
        reports.say(f"starting again: {difference}")
        found = score(dataclasses.replace(request, overwrite=True), progress)
    figures = {"rows": f"{found.rows:,}", "ok": f"{found.ok:,}"}
    if found.noise_rate is not None:
        figures["noise rate"] = f"{found.noise_rate:.1%}"
    made = [request.out, *([request.options.embeddings] if request.options.embeddings else [])]
    return Outcome(found.to_json(), figures, made, found.failed_shards)


def run_neighbours(request: NeighboursRequest, start: Start, reports: Reports) -> Outcome:
    """Search the neighbours of all pairs."""
    found = neighbours(
        dataclasses.replace(request, overwrite=request.overwrite or start is not Start.NEW),
        RowProgress(reports),
    )
    figures = {"pairs": f"{found.pairs:,}", "near-duplicates": f"{found.pair_duplicates:,}"}
    return Outcome(finite(found.to_json()), figures, [request.out])


def run_adapt(request: AdaptRequest, start: Start, reports: Reports) -> Outcome:
    """Adapt an estimator. It takes minutes, so one that was broken off starts again."""
    if start is not Start.NEW and (Path(request.out) / "open_clip_config.json").is_file():
        shutil.rmtree(request.out)  # a model that an earlier start of this stage wrote
    steps = request.options.steps
    found = adapt(
        request, lambda step, loss: reports.advance(step, steps, "steps", f"loss {loss:.3f}")
    )
    figures = {
        "strictly clean": f"{found.pairs:,}",
        "loss": f"{found.first_loss:.3f} to {found.last_loss:.3f}",
    }
    return Outcome(found.to_json(), figures, [request.out], found.failed_shards)


def run_select(request: SelectRequest, start: Start, reports: Reports) -> Outcome:
    """Apply a policy."""
    reports.say("selecting")
    found = select(request)
    figures = {"kept": f"{found.kept:,} of {found.rows:,}"}
    if found.expected_mismatched_kept is not None:
        figures["expected mismatched"] = f"{found.expected_mismatched_kept:,.0f}"
    return Outcome(found.to_json(), figures, [request.out])


def run_export(request: ExportRequest, start: Start, reports: Reports) -> Outcome:
    """Copy what was selected."""
    reports.say(f"writing to {request.out}")
    found = export(dataclasses.replace(request, overwrite=start.replaces), WrittenShards(reports))
    figures = {"samples": f"{found.samples:,}", "shards": f"{found.shards:,}"}
    missing = {name: f"{count:,} selected samples missing" for name, count in found.missing.items()}
    return Outcome(found.to_json(), figures, [request.out], {**found.errors, **missing})


def clear_export_stage(request: ExportRequest) -> None:
    """Remove shards that another selection may have filled."""
    if not request.is_uid_file:
        clear_export(stores.location(request.out))


def run_finetune(request: FinetuneRequest, start: Start, reports: Reports) -> Outcome:
    """Train, going on from the newest checkpoint."""
    reports.say(f"training {request.model} with {request.method}")
    first = dataclasses.replace(
        request, resume=request.resume or start is Start.RESUME, overwrite=start.replaces
    )
    try:
        found = finetune(first, training_steps(reports))
    except ResumeError as difference:
        if start is Start.NEW:  # not ours
            raise
        # Killed between the clearing of another run and the first step of this one.
        reports.say(f"starting again: {difference}")
        found = finetune(dataclasses.replace(request, overwrite=True), training_steps(reports))
    figures = {"steps": f"{found.steps:,}"}
    if found.first_loss is not None and found.last_loss is not None:
        figures["loss"] = f"{found.first_loss:.3f} to {found.last_loss:.3f}"
    return Outcome(found.to_json(), figures, [request.out], found.failed_shards)


def clear_finetune_stage(request: FinetuneRequest) -> None:
    """Remove checkpoints that go back to another selection of the same name."""
    clear_training(Path(request.out))


def run_evaluate_noise(request: NoiseEvaluationStage, start: Start, reports: Reports) -> Outcome:
    """Compare a score table with the truth in it; `out` gets the figures as JSON."""
    from ncclean.evaluation.noise_figure import save_figure

    reports.say("comparing scores and rules with the truth")
    found = evaluate_noise(request.request())
    made = [request.out]
    if request.plot is not None:
        save_figure(found.evaluation, found.figures, Path(request.plot))
        made.append(request.plot)
    result = finite(dataclasses.asdict(found.evaluation))
    write_json(request.out, result)
    return Outcome(result, _noise_figures(found.evaluation), made)


def run_report(request: ReportRequest, start: Start, reports: Reports) -> Outcome:
    """Draw the report."""
    found = report(request, ShardProgress(reports))
    figures = {"pairs shown": f"{len(found.pairs):,}"}
    return Outcome(
        finite(found.to_json()), figures, [request.out, *found.figures], found.failed_shards
    )


def write_json(path: str, value: Any) -> None:
    """A result as a file that is whole or not there."""
    with published(stores.location(path)) as aside:
        aside.write_text(json.dumps(value, indent=1) + "\n")


def _noise_figures(found: NoiseEvaluation) -> dict[str, str]:
    best = max(found.scores, key=lambda score: _all(score.kinds).report.auroc)
    return {
        "noisy": f"{sum(found.noisy.values()):,} of {found.clean + sum(found.noisy.values()):,}",
        "best AUROC": f"{_all(best.kinds).report.auroc:.3f} ({best.column})",
    }


def _all(kinds: Any) -> Any:
    return next(kind for kind in kinds if kind.kind == ALL)


def finite(value: Any) -> Any:
    """NaN and infinity have no JSON."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
