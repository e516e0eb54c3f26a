"""Keep the answers of a judge: in a journal while asking, then in `judge.parquet`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ncclean.auditing.answers import ANSWERS
from ncclean.auditing.sample import Sample
from ncclean.base import stores
from ncclean.base.atomic import published
from ncclean.base.file_names import WORKING_FOLDER
from ncclean.base.output_mark import check_free
from ncclean.base.small_tables import read_parquet
from ncclean.base.text_files import parse_json
from ncclean.errors import InputError
from ncclean.judging.reply import Judgement
from ncclean.storage.differences import check_same, differences
from ncclean.storage.run_record import RunRecord
from ncclean.storage.tables import table_metadata

JUDGED = "judge.parquet"
_JOURNAL = "judge.json"
_COMMAND = "audit"
_RUN, _TOKENS = "judge_run", "judge_tokens"  # keys of the file's metadata
_COLUMNS = {
    "answer": pa.string(),
    "reason": pa.string(),
    "words": pa.list_(pa.string()),
    "tokens_in": pa.int32(),
    "tokens_out": pa.int32(),
}
_KEYS = ["uid", "caption_number", "stratum"]
Identity = Mapping[str, Any]
_differences = partial(differences, labels={"sample": "the sample"})


@dataclass
class Journal:
    """Judgements by row of the sample; `tokens` were used for them.

    Each is synced to disk when added. A run killed at any moment resumes from the journal, and a
    finished one from `judge.parquet`.
    """

    folder: UPath
    identity: Identity
    sample: Sample
    judgements: dict[int, Judgement] = field(default_factory=dict)
    tokens: int = 0
    _record: RunRecord | None = None

    @classmethod
    def open(cls, folder: UPath, identity: Identity, sample: Sample, *, overwrite: bool) -> Journal:
        """Begin a run, or resume an earlier one of the same identity.

        Raises `ResumeError` if the existing answers are another run's, and `InputError` if another
        file or process is in the way.
        """
        journal = cls(folder, identity, sample)
        check_free([str(journal.table)], _COMMAND, overwrite)
        if overwrite:
            stores.remove_files(stores.present_files([journal.table]))
        else:
            journal._read_table()
        if overwrite or journal._is_empty():
            RunRecord.clear(journal.place, _COMMAND, base=folder)
        record = RunRecord.open(
            journal.place, _COMMAND, identity, base=folder, compare=_differences
        )
        journal._record = record
        try:
            with record.reading():
                for entry in record.entries:
                    journal._take_in(entry)
        except BaseException:
            record.close()
            raise
        return journal

    @property
    def table(self) -> UPath:
        return self.folder / JUDGED

    @property
    def largest_request(self) -> int:
        """The most tokens that a request took."""
        return max((one.tokens_in or 0 for one in self.judgements.values()), default=0)

    @property
    def place(self) -> UPath:
        return self.folder / WORKING_FOLDER / _JOURNAL

    def add(self, row: int, uid: str, judgement: Judgement, tokens: int = 0) -> None:
        """Append a judgement; it is on the disk on return.

        A pair without an image is retried by the next run.
        """
        assert self._record is not None
        self.judgements[row] = judgement
        self.tokens += tokens
        if judgement.lacks_picture:
            return
        values = {name: getattr(judgement, name) for name in _COLUMNS}
        self._record.append("answer", row=row, uid=uid, tokens=tokens, **values)

    def write(self, seed: int, facts: Mapping[str, Any]) -> UPath:
        """Write `judge.parquet`, the judged rows in the order of the sample."""
        numbers = sorted(self.judgements)
        table = self.sample.rows.select(_KEYS).take(pa.array(numbers, pa.int64()))
        judgements = [self.judgements[number] for number in numbers]
        for name, kind in _COLUMNS.items():
            values = pa.array([getattr(one, name) for one in judgements], kind)
            table = table.append_column(name, values)
        metadata = {
            **self.sample.metadata(seed),
            "judge": json.dumps(facts),
            _RUN: json.dumps(self.identity),
            _TOKENS: str(self.tokens),
        }
        with published(self.table) as aside:
            pq.write_table(table.replace_schema_metadata(metadata), aside, compression="zstd")
        return self.table

    def close(self, *, remove: bool) -> None:
        """Close the journal, and remove it if its answers are written, or there are none."""
        assert self._record is not None
        self._record.close()
        if not remove:
            return
        RunRecord.clear(self.place, _COMMAND, base=self.folder, says=False)
        if not stores.is_url(self.folder):
            with contextlib.suppress(OSError):  # other commands work there, too
                os.rmdir(str(self.place.parent))

    def _read_table(self) -> None:
        """Load the judgements of an earlier, finished run."""
        if not stores.present_files([self.table]):
            return
        path = str(self.table)
        table = read_parquet(path, [*_KEYS, *_COLUMNS], what="answers of a judge")
        metadata = table_metadata(path)
        before = parse_json(metadata.get(_RUN, "{}"), path)
        check_same(path, _differences(before, self.identity))
        # Both are in the order of the sample.
        columns = [self.sample.rows.column(name).to_pylist() for name in _KEYS]
        rows = enumerate(zip(*columns, strict=True))
        for values in table.to_pylist():
            key = tuple(values[name] for name in _KEYS)
            row = next((number for number, other in rows if other == key), None)
            if row is None:
                raise InputError(f"{path} has answers on pairs that are not in the sample")
            judgement = _judgement(values)
            if not judgement.lacks_picture:
                self.judgements[row] = judgement
        self.tokens = int(metadata.get(_TOKENS, "0"))

    def _is_empty(self) -> bool:
        """Check whether an earlier run was interrupted before any answer: it then has no effect."""
        earlier = RunRecord.load(self.place, _COMMAND, base=self.folder)
        return earlier is not None and not earlier.entries

    def _take_in(self, entry: dict[str, Any]) -> None:
        row = int(entry["row"])
        if not 0 <= row < len(self.sample.rows) or entry["answer"] not in ANSWERS:
            raise ValueError(entry)
        if row not in self.judgements:  # the table was written, and the journal not yet removed
            self.judgements[row] = _judgement(entry)
            self.tokens += int(entry["tokens"])


def _judgement(values: Mapping[str, Any]) -> Judgement:
    words = values["words"]
    return Judgement(
        values["answer"],
        values["reason"],
        None if words is None else tuple(words),
        values["tokens_in"],
        values["tokens_out"],
    )
