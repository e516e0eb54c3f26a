"""Which stages have to run, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fingerprint import fingerprint
from .folder import RunFolder, StageRecord
from .load import Recipe, Stage
from .outcome import Start


@dataclass(frozen=True)
class Decision:
    """What happens to a stage: `start` is None if it is skipped. `fingerprint` is None as long
    as a stage that it uses has yet to run."""

    stage: Stage
    start: Start | None
    reason: str
    fingerprint: str | None
    record: StageRecord | None

    @property
    def runs(self) -> bool:
        return self.start is not None


def decide(
    stage: Stage, folder: RunFolder, upstream: Mapping[str, str | None], forced: bool
) -> Decision:
    """What to do with a stage; `upstream` has the run ids of those before, None if yet to run."""
    record = folder.record(stage.name)
    waiting = [name for name in stage.uses if upstream[name] is None]
    if forced:
        found = None if waiting else _fingerprint(stage, upstream)
        start = Start.NEW if record is None else Start.AGAIN
        return Decision(stage, start, "asked for", found, record)
    if waiting:
        start = Start.NEW if record is None else Start.CHANGED
        return Decision(stage, start, f"{waiting[0]} runs", None, record)
    found = _fingerprint(stage, upstream)
    if record is None:
        return Decision(stage, Start.NEW, "new", found, None)
    if record.fingerprint != found or record.command != stage.command.name:
        return Decision(stage, Start.CHANGED, "options or inputs changed", found, record)
    if not record.done:
        return Decision(stage, Start.RESUME, "interrupted", found, record)
    if not folder.is_there(record):
        return Decision(stage, Start.CHANGED, "its output is gone", found, record)
    return Decision(stage, None, "unchanged", found, record)


def decide_all(recipe: Recipe, folder: RunFolder, start_from: str | None) -> list[Decision]:
    """The plan of a run, before any of it: what runs makes what uses it run."""
    upstream: dict[str, str | None] = {}
    decisions = []
    forced = False
    for stage in recipe.stages.values():
        forced = forced or stage.name == start_from
        decision = decide(stage, folder, upstream, forced)
        upstream[stage.name] = (
            None if decision.runs or decision.record is None else decision.record.run_id
        )
        decisions.append(decision)
    return decisions


def _fingerprint(stage: Stage, upstream: Mapping[str, str | None]) -> str:
    return fingerprint(stage, {name: upstream[name] or "" for name in stage.uses})
