"""Plan a run and its hours: `ncclean run --dry-run`.

Only `score` and `finetune`, which take hours, are estimated. Pairs are counted if known, estimated
from the shards, or passed on from earlier stages. The speed is that of one batch of the model on
this machine; the recipe's `pairs_per_second`, which may be another machine's, replaces it on Ray,
and for a model that cannot be tried.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ncclean.base.options import Reads
from ncclean.data.counting import estimate_samples
from ncclean.data.sources import resolve_sources
from ncclean.errors import NccleanError
from ncclean.execution.cost import Rates, estimate
from ncclean.models.estimator import Estimator
from ncclean.recipes.folder import RunFolder, StageRecord
from ncclean.recipes.references import names_in
from ncclean.training.objectives.registry import make_objective

from ..export import Export
from ..finetune import Finetune
from ..score import Score
from ..synth import Synth
from .check import inputs_of
from .decisions import Decision, decide_all
from .load import Recipe, Stage
from .run import check

# A training step: forward, and backward at twice its cost; NCU encodes the captions twice more.
_STEP_PER_FORWARD = 3.0
_SLOWER = {"ncu": 1.4}
_PROBED_BATCH = 64
# Options that name sources besides the pairs that a stage processes.
_COMPARED_WITH = ("reference", "donors")


@dataclass(frozen=True)
class PlannedStage:
    """A stage in the plan of a recipe's run.

    `action` is `run`, `resume` or `skip`; `pairs` and `hours` are None if unknown; `basis` says
    where the hours come from, or why there are none. `elsewhere` are its outputs outside the run's
    folder, `about` is the recipe's text.
    """

    name: str
    command: str
    action: str
    reason: str
    pairs: int | None = None
    hours: float | None = None
    basis: str = ""
    elsewhere: tuple[str, ...] = ()
    about: str | None = None


class _Amount(NamedTuple):
    """Pairs and their shards, None where they are not known."""

    pairs: int | None
    shards: int | None = None


def plan(
    recipe: Recipe, start_from: str | None = None, *, probe: bool = True
) -> list[PlannedStage]:
    """Plan the run of a recipe: what each stage does, and how long it takes.

    Without `probe` only stated speeds are used, and no model is loaded. Raises what `run` raises
    before starting anything.
    """
    check(recipe, start_from)
    amounts: dict[str, _Amount] = {}
    planned = []
    for decision in decide_all(recipe, RunFolder(recipe.folder), start_from):
        stage = decision.stage
        taken = _into(stage, amounts)
        amounts[stage.name] = _out_of(stage, taken, decision.record if not decision.runs else None)
        planned.append(_planned(decision, taken, probe))
    return planned


def budget(recipe: Recipe, stages: list[PlannedStage]) -> str:
    """Return a line on a run of repeated stages: how many of each command, passes, and hours.

    Hours are those of the stages whose speed is stated.
    """
    waiting = [stage for stage in stages if stage.action != "skip"]
    counts = Counter(stage.command for stage in waiting)
    named = ", ".join(f"{count:,} {command}" for command, count in counts.items())
    epochs, steps = 0.0, 0
    for stage in waiting:
        command = recipe.stages[stage.name].command
        if isinstance(command, Finetune) and command.training.steps is not None:
            steps += command.training.steps
        elif isinstance(command, Finetune):
            epochs += _epochs(command)
    hours = [stage.hours for stage in waiting if stage.hours is not None]
    parts = [f"{len(waiting):,} of {len(stages):,} stages to run: {named or 'none'}"]
    parts += [f"{epochs:g} epochs of training"] if epochs else []
    parts += [f"{steps:,} steps of training"] if steps else []
    parts += [f"about {sum(hours):,.1f} hours where a speed is stated"] if hours else []
    return "; ".join(parts)


def _epochs(command: Finetune) -> float:
    objective = make_objective(command.method, command.objective_options)
    return sum(phase.epochs for phase in objective.phases)


def _planned(decision: Decision, taken: _Amount, probe: bool) -> PlannedStage:
    stage = decision.stage
    facts: dict[str, Any] = {"elsewhere": stage.elsewhere, "about": stage.about}
    if not decision.runs:
        return PlannedStage(stage.name, stage.command.name, "skip", decision.reason, **facts)
    action = "resume" if decision.reason == "interrupted" else "run"
    hours, basis = None, ""
    if isinstance(stage.command, Score | Finetune):
        hours, basis = _hours(stage, taken, probe)
    return PlannedStage(
        stage.name, stage.command.name, action, decision.reason, taken.pairs, hours, basis, **facts
    )


def _hours(stage: Stage, taken: _Amount, probe: bool) -> tuple[float | None, str]:
    pairs, shards = taken
    if pairs is None:
        return None, "the number of pairs is not known yet"
    command = stage.command
    assert isinstance(command, Score | Finetune)
    speed, basis = stage.pairs_per_second, "stated speed"
    is_elsewhere = command.engine == "ray" or command.cluster.address is not None
    if probe and (speed is None or not is_elsewhere):
        measured, how = _probed(stage)
        if measured is not None or speed is None:
            speed, basis = measured, how
    if speed is None:
        return None, basis or "no pairs_per_second is stated"
    passes, workers = 1.0, 1
    if isinstance(command, Finetune):
        passes = _epochs(command)
        if command.training.steps is not None:
            passes = command.training.steps * command.batch_size / max(pairs, 1)
    else:
        workers = command.cluster.workers or 1
    # Embeddings and bytes do not matter for the hours.
    cost = estimate(int(pairs * passes), Rates(pairs_per_second=speed, input_bytes=0.0),
                    shards=shards or workers, workers=workers)  # fmt: skip
    times = f"{passes:g} passes, " if passes != 1 else ""
    on = f" on {cost.busy_workers:,} of {workers:,} workers" if workers > 1 else ""
    return cost.hours, f"{times}{basis} {speed:,.0f} pairs/s{on}"


def _probed(stage: Stage) -> tuple[float | None, str]:
    """Return the speed of one batch on this machine, and what was measured."""
    command = stage.command
    assert isinstance(command, Score | Finetune)
    if names_in(stage.symbolic.get("model", "")):
        return None, "the model is not made yet: state pairs_per_second"
    # Weights do not affect the speed, and may need a download, which a stated speed avoids.
    model = command.model, command.preprocess, command.precision, command.device
    speed, why = _speed(*model, None, True)
    if speed is None and stage.pairs_per_second is None:
        speed, why = _speed(*model, command.pretrained, False)
    if speed is None:
        return None, why
    if isinstance(command, Finetune):
        slower = _STEP_PER_FORWARD * _SLOWER.get(command.method, 1.0)
        return speed / slower, f"a forward pass here, times {slower:g}:"
    return speed, "a batch here:"


@functools.lru_cache
def _speed(
    model: str,
    preprocess: str | None,
    precision: str,
    device: str,
    pretrained: str | None,
    is_random: bool,
) -> tuple[float | None, str]:
    """Return a model's pairs per second, with random weights on request, or why not."""
    try:
        estimator = Estimator.load(
            model,
            pretrained,
            preprocess=preprocess,
            precision=precision,
            device=device,
            random_seed=0 if is_random else None,
        )
    except NccleanError as error:
        return None, str(error)
    return _PROBED_BATCH / estimator.seconds_per_batch(_PROBED_BATCH), ""


def _into(stage: Stage, amounts: Mapping[str, _Amount]) -> _Amount:
    """Return the pairs that a stage processes: those of its selection, its table, or its shards."""
    for option in ("selection", "scores", "embeddings", "shards"):
        names = names_in(stage.symbolic.get(option))
        made_by = [name.split(".")[0] for name in names if name != "run"]  # where a stage writes
        if made_by:
            return amounts.get(made_by[0], _Amount(None))
    sources = [
        value
        for option, kind, value in inputs_of(stage)
        if kind in (Reads.SHARDS, Reads.SOURCE) and option not in _COMPARED_WITH
    ]
    if sources:
        options = getattr(stage.command, "source_options", None)
        shards = resolve_sources(sources, options=options)
        return _Amount(estimate_samples(shards), len(shards))
    if isinstance(stage.command, Synth):
        corpus = stage.command.corpus
        return _Amount(corpus.pairs, math.ceil(corpus.pairs / corpus.shard_size))
    return _Amount(None)


def _out_of(stage: Stage, taken: _Amount, record: StageRecord | None) -> _Amount:
    """Return the pairs that a stage passes on: as recorded if done, else at most its input."""
    if record is not None:
        for key in ("kept", "samples", "rows", "pairs"):
            if isinstance(record.result.get(key), int):
                return _Amount(int(record.result[key]))
    if taken.pairs is None:
        return taken
    fraction = stage.values.get("keep_fraction")
    pairs = taken.pairs if fraction is None else round(taken.pairs * float(fraction))
    return _Amount(pairs, None if isinstance(stage.command, Export) else taken.shards)
