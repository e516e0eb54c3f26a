"""The folder of a run: a record and a log for each stage, and a lock.

recipe.yaml          the resolved recipe of the last start
versions.json        what it ran with
stages/NAME.json     the record of a stage: what it is made of, begun or done, seconds, results
logs/NAME.log        what the stage said
index.html           the page that links everything
NAME/                what the stage wrote, unless its `out` says otherwise
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.file_names import TABLE_ENDINGS, WORKING_FOLDER
from ncclean.base.formats import Table
from ncclean.base.output_mark import check_free, was_made_by
from ncclean.base.table_files import file_name, table_text
from ncclean.errors import InputError
from ncclean.recipes.references import RUN, written
from ncclean.storage.file_digests import footer_digest
from ncclean.storage.inputs import LOCAL_MODEL, file_stamp
from ncclean.storage.layout import ScoreLayout
from ncclean.storage.run_record import RUN as RUN_RECORD
from ncclean.storage.run_record import RunRecord, exists

_COMMAND = "run"  # whose records these are


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A stage that was begun, with its results once it is `done`.

    `run_id` changes whenever the stage starts over; stages that use this one depend on it.
    """

    stage: str
    command: str
    identity: dict[str, Any] = field(repr=False)
    done: bool = False
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    seconds: float = 0.0
    resumed: bool = False  # the seconds are those since then
    finished: str | None = None
    figures: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    elsewhere: dict[str, list[Any]] = field(default_factory=dict)  # size and version by file
    failures: dict[str, str] = field(default_factory=dict)
    file_counts: dict[str, int] = field(default_factory=dict)  # of the folders in `made`

    def to_json(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        del fields["identity"], fields["elsewhere"], fields["file_counts"]
        return fields


class RunFolder:
    """Reads and writes the records of a run; every file is whole or absent.

    Records call the folder `${run}`, so that it can be moved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def page(self) -> Path:
        return self.path / "index.html"

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def versions(self) -> Path:
        return self.path / "versions.json"

    def check_free(self) -> None:
        """Raise `InputError` for files in the folder that a run would replace and has not made."""
        if not (self.path / "stages").is_dir():
            check_free(map(str, (self.recipe, self.versions, self.page)), _COMMAND)

    def log_path(self, stage: str) -> Path:
        return self.path / "logs" / f"{stage}.log"

    def record(self, stage: str) -> StageRecord | None:
        """The record of a stage, None if it was never begun, or just so. Raises `InputError`."""
        path = self._record_path(stage)
        recorded = RunRecord.load(path, _COMMAND, base=UPath(self.path))
        if recorded is None or not recorded.entries:
            return None
        fields: dict[str, Any] = {}
        for entry in recorded.entries:
            fields |= {name: value for name, value in entry.items() if name != "kind"}
        fields["result"] = _converted(fields.get("result", {}), self.place)
        try:
            return StageRecord(identity=recorded.identity, **fields)
        except TypeError as error:
            raise InputError(
                f"{path} is not the record of a stage: remove it, or use another --out"
            ) from error

    def files(self, stage: str) -> list[str]:
        """Return the files that a stage's record lists."""
        recorded = RunRecord.load(self._record_path(stage), _COMMAND, base=UPath(self.path))
        return [] if recorded is None else [stores.canonical(str(one)) for one in recorded.listed()]

    def was_begun(self, stage: str) -> bool:
        """Check whether the stage left anything: a start killed early has no record yet."""
        return bool(exists(self._record_path(stage)))

    def begin(self, record: StageRecord, *, anew: bool) -> RunRecord:
        """Open the record of a stage; `anew` removes the files listed by an earlier start."""
        opened = RunRecord.open(
            self._record_path(record.stage),
            _COMMAND,
            record.identity,
            overwrite=anew,
            base=UPath(self.path),
        )
        if not opened.entries:
            opened.append("begun", stage=record.stage, command=record.command, run_id=record.run_id)
        return opened

    def finish(self, opened: RunRecord, record: StageRecord, **done: Any) -> StageRecord:
        """Record the results of a stage, in fields of `StageRecord`."""
        counts = {self.recorded(path): _file_count(path) for path in done["made"]}
        done |= {"done": True, "made": [*counts], "file_counts": counts}
        opened.append("done", **done | {"result": _converted(done["result"], self.recorded)})
        return dataclasses.replace(record, **done)

    def write_tables(self, tables: Iterable[Table]) -> None:
        """Write tables for a paper, replacing earlier ones: `tables/NUMBER-TITLE.csv`, `.tex`."""
        folder = self.path / "tables"
        for earlier in folder.glob("*.tex"):  # of a run that had other tables
            if was_made_by(str(earlier), _COMMAND):
                for ending in TABLE_ENDINGS:
                    earlier.with_suffix(ending).unlink(missing_ok=True)
        for number, table in enumerate(tables, start=1):  # titles may be alike
            folder.mkdir(exist_ok=True)
            for ending in TABLE_ENDINGS:
                self.write(
                    folder / f"{number}-{file_name(table)}{ending}",
                    table_text(table, ending, _COMMAND),
                )

    def write(self, path: Path, text: str) -> None:
        """Write a file of the run."""
        with published(UPath(path)) as aside:
            aside.write_text(text, encoding="utf-8")

    @contextmanager
    def log(self, stage: str) -> Iterator[TextIO]:
        """The log of a stage, to append to."""
        path = self.log_path(stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8", opener=_no_link) as stream:
            yield stream

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second run out; a killed one leaves no lock. Raises `InputError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Held to the end of the run. A link would empty another file.
            lock = open(self.path / ".lock", "a", opener=_no_link)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"another run is using {self.path}: wait for it, or use another --out"
                ) from None
            yield

    def elsewhere(self, outputs: Iterable[str]) -> dict[str, list[Any]]:
        """Return size and version of outputs outside the folder, where other runs may write."""
        outside = (path for path in outputs if self.recorded(path) == path)
        return {path: stamp for path in outside if (stamp := _stamp(path)) is not None}

    def is_replaced(self, record: StageRecord) -> bool:
        """Check whether outputs outside the folder are no longer those that the stage wrote."""
        return self.elsewhere(record.elsewhere) != record.elsewhere

    def is_there(self, record: StageRecord) -> bool:
        """Check whether everything that the stage made still exists.

        A folder with fewer files than before lacks some, such as a shard.
        """
        places = {path: self.place(path) for path in record.made}
        return all(
            stores.exists(stores.location(place))
            and _file_count(place) >= record.file_counts.get(path, 0)
            for path, place in places.items()
        )

    def place(self, recorded: str) -> str:
        """Return the path that a record means."""
        return recorded.replace(written(RUN), str(self.path), 1)

    def recorded(self, path: str) -> str:
        """Return a path, or the model there, in the form of records."""
        prefix = LOCAL_MODEL if path.startswith(LOCAL_MODEL) else ""
        place = path.removeprefix(prefix)
        is_inside = place.startswith(f"{self.path}/")
        return prefix + place.replace(str(self.path), written(RUN), 1) if is_inside else path

    def _record_path(self, stage: str) -> UPath:
        return UPath(self.path / "stages" / f"{stage}.json")


def _converted(value: Any, convert: Callable[[str], str]) -> Any:
    """Convert the texts in a JSON value, such as the models that a result names."""
    if isinstance(value, Mapping):
        return {name: _converted(inner, convert) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_converted(inner, convert) for inner in value]
    return convert(value) if isinstance(value, str) else value


def _file_count(place: str) -> int:
    """Count the files in a local folder; 0 for anything else.

    Not those in its subfolders: checkpoints may be removed to save space.
    """
    if stores.is_url(place) or not os.path.isdir(place):
        return 0
    with os.scandir(place) as entries:
        return sum(not entry.name.startswith(".") and entry.is_file() for entry in entries)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _stamp(output: str) -> list[Any] | None:
    """Return size and version of an output; None for a folder without a run record.

    A score table's version is that of its footers: whoever resumes its run writes it once more.
    """
    place = stores.location(output)
    record = place / WORKING_FOLDER / RUN_RECORD
    if stores.present_files([ScoreLayout(place).shard_list]):
        return [0, footer_digest([output])]
    files = stores.present_files([place, record])
    return list(file_stamp(str(files[0]))[1:]) if files else None


def single_files(paths: Iterable[str]) -> list[UPath]:
    """Return the paths that are files; folders have their own record, or are named."""
    places = map(stores.location, paths)
    return [place for place in places if stores.is_url(place) or place.is_file()]
