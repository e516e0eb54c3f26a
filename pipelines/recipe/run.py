"""A recipe run: each stage in turn, skipped where nothing has changed since it was done."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol, TextIO

import yaml

from ncclean.errors import InputError, NccleanError

from .check import check_columns, check_inputs
from .decide import Decision, decide
from .folder import RunFolder, StageRecord
from .load import Recipe, Stage
from .page import write_page
from .reports import Both, Lines, NoReports, Reports
from .tables import ResultTable, result_tables
from .versions import versions


class RunReports(Protocol):
    """Hears how far a run is."""

    def begin(self, stage: Stage, number: int, of: int, reason: str) -> Reports:
        """A stage begins; what is returned hears how far it is."""

    def end(self, record: StageRecord) -> None:
        """A stage is done."""

    def skip(self, stage: Stage) -> None:
        """A stage is left out: nothing has changed."""


class NoRunReports:
    """Tells nobody."""

    def begin(self, stage: Stage, number: int, of: int, reason: str) -> Reports:
        return NoReports()

    def end(self, record: StageRecord) -> None: ...
    def skip(self, stage: Stage) -> None: ...


@dataclass(frozen=True)
class RunSummary:
    """The records of all stages, those that `ran` in this start, and the tables of results."""

    recipe: str
    folder: str
    page: str
    records: dict[str, StageRecord]
    ran: tuple[str, ...]
    tables: tuple[ResultTable, ...]

    @property
    def failures(self) -> dict[str, dict[str, str]]:
        """What stages could not do, with reasons."""
        return {name: rec.failures for name, rec in self.records.items() if rec.failures}

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "out": self.folder,
            "page": self.page,
            "ran": list(self.ran),
            "stages": {name: vars(record) for name, record in self.records.items()},
            "tables": [dataclasses.asdict(table) for table in self.tables],
        }


def check(recipe: Recipe, start_from: str | None = None) -> None:
    """Raise `RecipeError` for an input that is not there or a column that nothing produces."""
    if start_from is not None and start_from not in recipe.stages:
        known = ", ".join(recipe.stages)
        raise InputError(f"--from {start_from}: no such stage; the stages are {known}")
    check_inputs(recipe)
    check_columns(recipe)


def run(
    recipe: Recipe, reports: RunReports | None = None, start_from: str | None = None
) -> RunSummary:
    """Run what has to be run, in the folder of the recipe.

    `start_from` runs that stage and all after it again. Raises `InputError` before anything
    starts if the recipe or its inputs are wrong, and whatever a stage raises, named after it; the
    same call goes on from there.
    """
    reports = reports or NoRunReports()
    check(recipe, start_from)
    folder = RunFolder(recipe.folder)
    with folder.locked():
        _write_start(recipe, folder)
        records: dict[str, StageRecord] = {}
        ran: list[str] = []
        forced = False
        for number, stage in enumerate(recipe.stages.values(), start=1):
            forced = forced or stage.name == start_from
            run_ids: dict[str, str | None] = {n: record.run_id for n, record in records.items()}
            decision = decide(stage, folder, run_ids, forced)
            if not decision.runs and decision.record is not None:
                records[stage.name] = decision.record
                reports.skip(stage)
                continue
            told = reports.begin(stage, number, len(recipe.stages), decision.reason)
            records[stage.name] = _run_stage(recipe, decision, folder, told)
            ran.append(stage.name)
            reports.end(records[stage.name])
            write_page(recipe, folder, records)
        write_page(recipe, folder, records)
    return RunSummary(
        recipe=recipe.name,
        folder=str(recipe.folder),
        page=str(folder.page),
        records=records,
        ran=tuple(ran),
        tables=tuple(result_tables(recipe, records)),
    )


def _run_stage(recipe: Recipe, decision: Decision, folder: RunFolder, told: Reports) -> StageRecord:
    stage, start = decision.stage, decision.start
    assert start is not None
    assert decision.fingerprint is not None  # everything before it has run
    begun = StageRecord(
        stage=stage.name, command=stage.command.name, fingerprint=decision.fingerprint
    )
    if start.replaces and stage.command.clear is not None:
        # Killed while it clears, the next start must not take the rest for its own.
        folder.keep(dataclasses.replace(begun, fingerprint=""))
        stage.command.clear(stage.request)
    folder.keep(begun)
    with folder.log(stage.name) as log, _library_log(log):
        lines = Lines(log)
        lines.say(f"{stage.name}: {stage.command.name}, {decision.reason}")
        time_begin = time.monotonic()
        try:
            outcome = stage.command.run(stage.request, start, Both(told, lines))
        except BaseException as error:
            lines.say("".join(traceback.format_exception(error)).rstrip())
            if isinstance(error, NccleanError):
                where = f"{recipe.source.name}, stage {stage.name!r}"
                raise type(error)(f"{where}: {error}") from error
            raise
        made = [folder.recorded(path) for path in outcome.made]
        done = begun.finish(
            dataclasses.replace(outcome, made=made),
            time.monotonic() - time_begin,
            datetime.now(timezone.utc).isoformat(),
        )
        lines.say(f"done in {done.seconds:,.1f} s: {json.dumps(done.figures)}")
    folder.keep(done)
    return done


def _write_start(recipe: Recipe, folder: RunFolder) -> None:
    """What is run, and with what."""
    resolved = yaml.safe_dump(_plain(recipe.resolved()), sort_keys=False, allow_unicode=True)
    folder.write(folder.path / "recipe.yaml", resolved)
    folder.write(folder.path / "versions.json", json.dumps(versions(), indent=1) + "\n")


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


@contextmanager
def _library_log(stream: TextIO) -> Iterator[None]:
    """Messages of the library go into the log of the stage too."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ncclean")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
