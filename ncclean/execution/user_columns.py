"""Columns of a user's own functions: `--columns package.module:function`."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ncclean.base.config import ScoreOptions
from ncclean.columns import ColumnFunction, Declared, PairBatch, declared_columns
from ncclean.errors import InputError
from ncclean.execution.column_source import ColumnSource, arrow_array
from ncclean.execution.encoded_shard import Values
from ncclean.scoring.stats import ColumnFailures

logger = logging.getLogger(__name__)

_LONGEST_REASON = 300


@dataclass(frozen=True)
class _Function:
    """A function of `--columns`, by its given name."""

    name: str
    call: ColumnFunction
    declared: Declared

    def __call__(self, batch: PairBatch, failures: ColumnFailures) -> Values:
        """Return (n,) values of each column, computed singly if the batch fails."""
        try:
            return self._values(batch)
        except Exception:
            logger.debug("%s failed on a batch", self.name, exc_info=True)
        rows = [self._of_one(batch.only(row), failures) for row in range(len(batch))]
        return {
            name: pa.concat_arrays([values[name] for values in rows])
            for name in self.declared.types
        }

    def _of_one(self, pair: PairBatch, failures: ColumnFailures) -> Values:
        try:
            return self._values(pair)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            failures.add(self.name, reason[:_LONGEST_REASON])
            return {name: pa.nulls(1, kind) for name, kind in self.declared.types.items()}

    def _values(self, batch: PairBatch) -> Values:
        returned = self.call(batch)
        if not isinstance(returned, Mapping) or set(returned) != set(self.declared.types):
            names = ", ".join(self.declared.types)
            raise TypeError(f"it must return a mapping with values for {names}")
        values = {
            name: arrow_array(returned[name], kind) for name, kind in self.declared.types.items()
        }
        for name, array in values.items():
            if len(array) != len(batch):
                raise ValueError(f"{name} has {len(array)} values for {len(batch)} pairs")
        return values


@dataclass(frozen=True)
class UserColumns(ColumnSource):
    """The columns of users' functions of `PairBatch`; see `ncclean.columns`."""

    functions: Sequence[_Function]
    flag = "--columns"
    options = ("columns",)
    follows_scores = False

    @classmethod
    def of(cls, options: ScoreOptions) -> UserColumns | None:
        """Import the functions of `--columns`. Raises `InputError` if that fails."""
        names = options.columns or ()
        return cls([_load_function(name) for name in names]) if names else None

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Names and types of the columns that all functions of `--columns` declare."""
        types: dict[str, pa.DataType] = {}
        for function in self.functions:
            for name, kind in function.declared.types.items():
                if name in types:
                    raise InputError(f"{function.name}: the table has a column {name} already")
                types[name] = kind
        return types

    @property
    def modules(self) -> list[Any]:
        """Names of the modules that hold the functions of `--columns`."""
        return [sys.modules[function.call.__module__] for function in self.functions]

    def identity(self) -> Mapping[str, Any]:
        """Return names and versions of the functions of `--columns`."""
        return {"columns": [f"{one.name} {one.declared.version}" for one in self.functions]}

    def of_batch(self, batch: PairBatch, failures: ColumnFailures) -> Values:
        """Call the user's functions on a batch; a failure gives nulls and is counted."""
        values: Values = {}
        for function in self.functions:
            values |= function(batch, failures)
        return values


def _load_function(name: str) -> _Function:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InputError(f"--columns takes package.module:function, got {name}")
    call: Callable[[PairBatch], Any]
    try:
        call = getattr(_imported(module), attribute)
    except AttributeError as error:
        raise InputError(f"--columns {name}: {module} has no {attribute}") from error
    except Exception as error:  # a module may raise anything when it is imported
        raise InputError(f"--columns {name}: {type(error).__name__}: {error}") from error
    declared = declared_columns(call)
    if declared is None or not declared.types:
        raise InputError(
            f"--columns {name}: it does not declare its columns; put "
            "`@ncclean.columns.columns(name=pyarrow.float32())` above the function"
        )
    return _Function(name, call, declared)


def _imported(module: str) -> Any:
    """Import a module, also from the working folder, as `python -m` does."""
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        return importlib.import_module(module)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    finally:
        sys.path.remove(folder)
