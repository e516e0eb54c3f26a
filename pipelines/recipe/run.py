"""Run a recipe: each stage in turn, skipped if nothing has changed since it was done."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TextIO

import yaml
from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import reported
from ncclean.base.formats import Table
from ncclean.base.options import parameters
from ncclean.base.output_mark import mark
from ncclean.base.url_secrets import values_without_secrets
from ncclean.base.visible_text import MessageFormatter
from ncclean.errors import InputError, NccleanError, ResumeError
from ncclean.recipes.folder import RunFolder, StageRecord, single_files
from ncclean.recipes.matrix_tables import tables_of
from ncclean.recipes.page import write_page
from ncclean.recipes.versions import versions

from ..command import Command, Result
from ..progress import SILENT, Both, Lines, OfStage, Progress
from .check import check_columns, check_inputs
from .decisions import Decision, Start, decide
from .load import Recipe


@dataclass(frozen=True)
class RunSummary:
    """The result of running a recipe: records of all stages, those that `ran` now, and tables."""

    recipe: str
    folder: str
    page: str
    records: dict[str, StageRecord]
    ran: tuple[str, ...]
    tables: tuple[Table, ...]

    @property
    def failures(self) -> dict[str, dict[str, str]]:
        """The failures of the stages, with reasons."""
        return {name: rec.failures for name, rec in self.records.items() if rec.failures}

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "out": self.folder,
            "page": self.page,
            "ran": list(self.ran),
            "stages": {name: record.to_json() for name, record in self.records.items()},
            "tables": [
                {"title": table.title, "heads": table.heads, "rows": table.rows}
                for table in self.tables
            ],
        }


def check(recipe: Recipe, start_from: str | None = None) -> None:
    """Raise `RecipeError` for a missing input of a recipe, or a column that nothing produces."""
    recipe.forced_from(start_from)  # refuses a stage that is not there
    check_inputs(recipe)
    check_columns(recipe)


def run(recipe: Recipe, progress: Progress = SILENT, start_from: str | None = None) -> RunSummary:
    """Run the stages of a recipe that have to be run, in its folder.

    `start_from` runs that stage and all after it again. Raises `InputError` before anything starts
    if the recipe or its inputs are wrong, and whatever a stage raises, with its name; the same call
    resumes there.
    """
    check(recipe, start_from)
    forced = recipe.forced_from(start_from)
    folder = RunFolder(recipe.folder)
    for stage in recipe.stages.values():
        for path in stage.elsewhere:
            progress.say(f"{stage.name} writes outside of the run's folder: {path}")
    with folder.locked():
        _write_start(recipe, folder)
        records: dict[str, StageRecord] = {}
        ran: list[str] = []
        writers: dict[str, str] = {}  # stages by the files that they have written
        for number, stage in enumerate(recipe.stages.values(), start=1):
            run_ids: dict[str, str | None] = {n: record.run_id for n, record in records.items()}
            decision = decide(stage, folder, run_ids, stage.name in forced)
            if not decision.runs and decision.record is not None:
                records[stage.name] = decision.record
                progress.say(f"{stage.name}: unchanged, skipped")
                writers |= dict.fromkeys(folder.files(stage.name), stage.name)
                continue
            place = f"stage {number} of {len(recipe.stages)}"
            is_named = stage.name != stage.command.name
            what = f"{stage.name} ({stage.command.name})" if is_named else stage.name
            progress.say(f"{place}, {what}: {decision.reason}")
            record = _run_stage(recipe, decision, folder, writers, OfStage(progress, stage.name))
            records[stage.name] = record
            writers |= dict.fromkeys(folder.files(stage.name), stage.name)
            ran.append(stage.name)
            figures = ", ".join(f"{name} {value}" for name, value in record.figures.items())
            progress.say(f"{stage.name}: done in {record.seconds:,.1f} s; {figures}")
            write_page(recipe.name, recipe.about, recipe.stages, folder, records)
        write_page(recipe.name, recipe.about, recipe.stages, folder, records)
        tables = tuple(tables_of(recipe.stages, records))
        folder.write_tables(tables)
    return RunSummary(
        recipe=recipe.name,
        folder=str(recipe.folder),
        page=str(folder.page),
        records=records,
        ran=tuple(ran),
        tables=tables,
    )


def _run_stage(
    recipe: Recipe,
    decision: Decision,
    folder: RunFolder,
    writers: Mapping[str, str],
    progress: Progress,
) -> StageRecord:
    stage, start = decision.stage, decision.start
    assert start is not None
    assert decision.identity is not None  # everything before it has run
    record = StageRecord(stage=stage.name, command=stage.command.name, identity=decision.identity)
    if start is Start.RESUME and decision.record is not None:
        record = decision.record
    with (
        folder.begin(record, anew=start.is_anew) as opened,
        folder.log(stage.name) as log,
        _library_log(log),
    ):
        lines = Lines(log, with_time=True)
        lines.say(f"{stage.name}: {stage.command.name}, {decision.reason}")
        begin = time.monotonic()

        def list_file(path: UPath) -> None:
            writer = writers.get(stores.canonical(str(path)))
            if writer is not None:  # two evaluations may share a folder, but no file
                raise InputError(
                    f"{path} is an output of the stage {writer!r}, too: give one of them another "
                    "`out`"
                )
            opened.made(path)

        try:
            # Commands without their own record: if killed, existing files are listed.
            listing = nullcontext() if stage.command.has_record else reported(list_file)
            with listing:
                result = execute(stage.command, start, Both(progress, lines))
        except BaseException as error:
            lines.say("".join(traceback.format_exception(error)).rstrip())
            if isinstance(error, NccleanError):
                where = f"{recipe.name}, stage {stage.name!r}"
                raise type(error)(f"{where}: {error}") from error
            raise
        # Commands with their own record list what they wrote, and refuse to replace others' files.
        if not stage.command.has_record:
            opened.made(*single_files(result.made))
        record = folder.finish(
            opened,
            record,
            finished=datetime.now(timezone.utc).isoformat(),
            seconds=round(time.monotonic() - begin, 2),
            resumed=start is Start.RESUME and stage.command.has_record,
            figures=dict(result.figures),
            result=result.to_json(),
            made=list(result.made),
            elsewhere=folder.elsewhere(result.made),
            failures=dict(result.failures),
        )
        lines.say(f"done in {record.seconds:,.1f} s: {json.dumps(record.figures)}")
    return record


def execute(command: Command, start: Start, progress: Progress) -> Result[Any]:
    """Run a stage's command after a possible earlier start of the stage.

    A command with its own record knows best what remains valid: all parts of a score table with
    another shift do. It is told to start over if it finds nothing valid. A command without one
    replaces what it wrote, and nothing else.
    """
    if "overwrite" not in parameters(type(command)):
        return command.run(progress)
    anew: Any = dataclasses.replace(command, overwrite=True)  # type: ignore[call-arg]
    is_again = start is Start.AGAIN and command.has_record
    try:
        result: Result[Any] = (anew if is_again else command).run(progress)
    except ResumeError as difference:
        if start is Start.NEW:  # it is somebody else's
            raise
        progress.say(f"starting again: {difference.difference}")
        result = anew.run(progress)
    return result


def _write_start(recipe: Recipe, folder: RunFolder) -> None:
    """Record recipe and versions. Raises `InputError` for unrelated files in the way."""
    plain = values_without_secrets(json.loads(json.dumps(recipe.resolved())))
    resolved = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    ran_with = {"made_by": mark("run"), **versions()}
    folder.check_free()
    folder.write(folder.recipe, f"# {mark('run')}\n{resolved}")
    folder.write(folder.versions, json.dumps(ran_with, indent=1) + "\n")


@contextmanager
def _library_log(stream: TextIO) -> Iterator[None]:
    """Messages of the library go into the log of the stage too."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(MessageFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ncclean")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
