"""Write the page of a run: results, stages with figures, files and logs, recipe, versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ncclean.base import stores
from ncclean.recipes.folder import RunFolder, StageRecord
from ncclean.recipes.matrix_tables import tables_of
from ncclean.recipes.stage_facts import StageFacts
from ncclean.recipes.versions import versions
from ncclean.report.page import asset, content_policy, render_page

_LEADS = 2  # figures beside the number of stages and the time


def write_page(
    name: str,
    about: str | None,
    stages: Mapping[str, StageFacts],
    folder: RunFolder,
    records: Mapping[str, StageRecord],
) -> None:
    """Write `index.html` for a run of the recipe `name`; it needs no other file, and links those of
    the run."""
    style = asset("report.css")
    finished = max((record.finished or "" for record in records.values()), default="")
    html = render_page(
        "run",
        name,
        style,
        policy=content_policy(style),
        package="ncclean.recipes",
        name=name,
        about=about,
        stages=[_stage_row(stage, folder, records.get(name)) for name, stage in stages.items()],
        done=sum(record.done for record in records.values()),
        seconds=sum(record.seconds for record in records.values()),
        finished=finished[:16].replace("T", " "),
        # No repeated stage represents the others: their tables have the means.
        leads=[] if any(stage.cell for stage in stages.values()) else _leads(records),
        tables=list(tables_of(stages, records)),
        failures=[
            (name, what, reason)
            for name, record in records.items()
            for what, reason in record.failures.items()
        ],
        text=folder.recipe.read_text("utf-8"),
        versions=versions(),
    )
    folder.write(folder.page, html)


def _stage_row(stage: StageFacts, folder: RunFolder, record: StageRecord | None) -> dict[str, Any]:
    return {
        "stage": stage,
        "record": record,
        "log": f"logs/{quote(stage.name)}.log",
        "files": [
            (folder.place(path), _link(folder, folder.place(path)))
            for path in (record.made if record else [])
        ],
    }


def _link(folder: RunFolder, path: str) -> str | None:
    """Make a path relative to the page if possible, so that the folder can be moved."""
    if stores.is_url(path):
        return None
    try:
        relative = os.path.relpath(Path(path).resolve(), folder.path.resolve())
    except ValueError:
        return None
    return quote(relative)


def _leads(records: Mapping[str, StageRecord]) -> list[tuple[str, str, str]]:
    """Return the noise rate if there is one, then the first figures of the last stages with any."""
    leads = [
        ("noise rate", record.figures["noise rate"], name)
        for name, record in records.items()
        if "noise rate" in record.figures
    ][:1]
    for name, record in reversed(list(records.items())):
        if len(leads) == _LEADS:
            break
        figure = next(iter(record.figures.items()), None)
        if figure is not None and record.command in ("select", "finetune", "export"):
            leads.append((figure[0], figure[1], name))
    return leads
