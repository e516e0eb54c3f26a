"""Decide which stages have to run, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ncclean.recipes.folder import RunFolder, StageRecord
from ncclean.storage.differences import differences

from .identity import stage_identity
from .load import Recipe, Stage


class Start(Enum):
    """Why a stage of a recipe runs, which decides whether it resumes or starts anew."""

    NEW = "new"  # this run has not begun it before
    RESUME = "resume"  # it was interrupted, and is still the same
    CHANGED = "changed"  # its options or inputs have changed
    AGAIN = "again"  # a person asked for it

    @property
    def is_anew(self) -> bool:
        """Whether existing results of the stage are useless."""
        return self in (Start.CHANGED, Start.AGAIN)


@dataclass(frozen=True)
class Decision:
    """The decision about a stage of a recipe: `start` says how it starts, None if it is skipped.

    `identity` is None as long as a stage that it uses has yet to run.
    """

    stage: Stage
    start: Start | None
    reason: str
    identity: dict[str, Any] | None
    record: StageRecord | None

    @property
    def runs(self) -> bool:
        return self.start is not None


def decide(
    stage: Stage, folder: RunFolder, upstream: Mapping[str, str | None], is_forced: bool
) -> Decision:
    """Decide whether and how a stage runs, from the records of earlier runs.

    `upstream` has the run ids of the stages that it uses, None if yet to run.
    """
    record = folder.record(stage.name)
    waiting = [name for name in stage.uses if upstream[name] is None]
    now = None
    if not waiting:
        now = stage_identity(stage, {name: upstream[name] or "" for name in stage.uses})

    def decision(start: Start | None, reason: str) -> Decision:
        return Decision(stage, start, reason, now, record)

    is_new = not folder.was_begun(stage.name)
    if is_forced:
        return decision(Start.NEW if is_new else Start.AGAIN, "asked for")
    if now is None:
        return decision(Start.NEW if is_new else Start.CHANGED, f"{waiting[0]} runs")
    if record is None:
        return decision(Start.NEW, "new") if is_new else decision(Start.CHANGED, "interrupted")
    changes = differences(record.identity, now)
    if changes:
        return decision(Start.CHANGED, _reason(record.identity, now, changes))
    if not record.done:
        return decision(Start.RESUME, "interrupted")
    if not folder.is_there(record):
        return decision(Start.CHANGED, "its output is gone")
    if folder.is_replaced(record):
        return decision(Start.CHANGED, "its output has been replaced")
    return decision(None, "unchanged")


def decide_all(recipe: Recipe, folder: RunFolder, start_from: str | None) -> list[Decision]:
    """Decide about all stages in advance: a stage that runs makes those that use it run."""
    upstream: dict[str, str | None] = {}
    decisions = []
    forced = recipe.forced_from(start_from)
    for stage in recipe.stages.values():
        decision = decide(stage, folder, upstream, stage.name in forced)
        upstream[stage.name] = (
            None if decision.runs or decision.record is None else decision.record.run_id
        )
        decisions.append(decision)
    return decisions


def _reason(before: Mapping[str, Any], now: Mapping[str, Any], changes: list[str]) -> str:
    """Describe what has changed without digests and run ids, which mean nothing to people."""
    if before["upstream"] != now["upstream"]:
        names = [n for n, run in now["upstream"].items() if before["upstream"].get(n) != run]
        return f"{names[0]} has run again" if names else "it uses other stages"
    if before["inputs"] != now["inputs"]:
        names = [n for n, digest in now["inputs"].items() if before["inputs"].get(n) != digest]
        return f"options or inputs changed: {names[0] if names else 'fewer inputs'}"
    return f"options or inputs changed: {changes[0]}"
